"""A grid's listener for tests."""

from strongreplay.runs.jobs import Job


class Quiet:
    """Shows nothing, and never asks for a stop."""

    def on_tick(self, running: list[Job]) -> None: ...
    def on_message(self, name: str, text: str) -> None: ...
    def wants_stop(self) -> bool:
        return False
