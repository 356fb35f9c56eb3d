"""Inbox: the actor between a driver and its runs on a Ray cluster. It needs no torch and starts quickly."""

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strongreplay.training.events import Scores

Key = tuple[int, int]  # the id of a job, as names may be equal, and the number of the attempt
Event = tuple[Key, str, tuple[Any, ...]]


class Inbox:
    """Holds messages of runs until the driver takes them, and the driver's replies until the runs ask."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.answers: dict[Key, asyncio.Future[bool]] = {}
        self.stopping = False

    async def send(self, key: Key, kind: str, *rest: Any) -> bool:
        """Returns whether the run shall stop."""
        self.events.append((key, kind, rest))
        return self.stopping

    async def judge(self, key: Key, index: int, scores: "Scores") -> bool:
        """Wait for the driver to say whether the run goes on."""
        self.answers[key] = asyncio.get_running_loop().create_future()
        self.events.append((key, "scores", (index, scores)))
        return await self.answers[key]

    async def answer(self, key: Key, goes_on: bool) -> None:
        self.answers.pop(key).set_result(goes_on)

    async def take(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    async def stop(self) -> None:
        self.stopping = True
