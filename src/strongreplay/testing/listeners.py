"""The contracts of a listener."""

from typing import Any

import torch

from strongreplay.methods import method_row
from strongreplay.protocol import derive_generator
from strongreplay.testing.case import ContractError, MethodCase, expect, small_stream, weights
from strongreplay.training.engine import train_task
from strongreplay.training.events import Listener, Outcome, RunInfo


def check_listener(listener: Listener) -> None:
    """Check that a listener accepts every event and does not change the training."""
    stream, found = small_stream(), []
    for listeners in ([], [listener]):
        case = MethodCase(method_row("er"), stream=stream)
        method, order = case.make(), derive_generator(0, "order")
        reports = Strict(listeners)
        reports.on_start(RunInfo("check", len(stream), 15))
        for task in stream:
            reports.on_phase(task.index, "main")
            optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
            train_task(
                method,
                task,
                stream.test_view,
                optimizer,
                epochs=1,
                batch_size=16,
                generator=order,
                listener=reports,
            )
            reports.on_task(task.index, {"class-il": [1.0, None, None]})
        reports.on_message("a message")
        reports.on_end(Outcome("finished"))
        found.append(weights(method.net))
    same = torch.equal(found[0], found[1])
    expect(same, f"{type(listener).__name__} changes what is learnt.", "Change neither terms nor generators.")


class Strict(Listener):
    """Passes events on; an exception raises a ContractError instead of a warning."""

    def __init__(self, listeners: list[Listener]) -> None:
        self.listeners = listeners

    def __getattribute__(self, event: str) -> Any:
        if not event.startswith("on_"):
            return super().__getattribute__(event)

        def send(*values: Any) -> None:
            for listener in self.listeners:
                try:
                    getattr(listener, event)(*values)
                except Exception as error:
                    name = f"{type(listener).__name__}.{event}"
                    raise ContractError(f"{name} raises {type(error).__name__}: {error}.") from error

        return send
