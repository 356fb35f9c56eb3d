"""A method learns, is tested, saved and resumed on a simulated device as on the CPU, and in bfloat16."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from strongreplay.methods.base import Method, Phase
from strongreplay.protocol import Batch, Terms, derive_generator
from strongreplay.simulated_device import SimulatedDevice
from strongreplay.testing.case import ALL_CLASSES, BATCH_SIZE, MethodCase, expect, weights
from strongreplay.training.engine import evaluate
from strongreplay.training.events import Listener, Listeners, Position
from strongreplay.training.precision import Precision
from strongreplay.training.settings import TrainConfig
from strongreplay.training.trainer import Interrupted, Trainer


def check_low_precision(case: MethodCase) -> None:
    """Nets that compute in bfloat16 are learnt, and all that is kept stays in float32."""
    method, name = case.make(), case.row.label
    precision = Precision(TrainConfig(precision="bf16"), torch.device("cpu"))
    with precision.applied(method):
        case.learn(method)
        for task in range(len(case.stream)):
            evaluate(method, case.stream.test(task), case.stream.test_view, ALL_CLASSES)
    held = {key: value for key, value in method.state_dict().items() if isinstance(value, Tensor)}
    low = [key for key, value in held.items() if value.is_floating_point() and value.element_size() < 4]
    remedy = "Keep what the net returns; do not cast it."
    expect(not low, f"{name} keeps {', '.join(low)} in low precision.", remedy)
    finite = bool(weights(method.net).isfinite().all())
    expect(finite, f"{name}: weights are not finite after training in bfloat16.", "Guard small divisors.")
    moved = not torch.equal(weights(method.net), weights(case.learnt.net))
    remedy = "Call the net through self.net, or a copy of it that the method owns."
    expect(moved, f"{name} does not compute in bfloat16 when it is asked to.", remedy)


def check_device(case: MethodCase) -> None:
    """It learns, is tested, saved and resumed on a simulated device as on the CPU, and no step is read."""
    plain = case.make()
    trainer = trainer_of(case, plain)
    for task in case.stream:
        trainer.index = task.index
        trainer.learn(task)
    same = torch.equal(learn_on_device(case, stop_after=7), weights(plain.net))
    remedy = "Choose by values alone, not by the device, and load tensors to the device of the parameters."
    expect(same, f"{case.row.label} learns differently on a device, or after a resume there.", remedy)


def trainer_of(case: MethodCase, method: Method) -> Trainer:
    order, view = derive_generator(0, "order"), case.stream.test_view
    settings = TrainConfig(batch_size=BATCH_SIZE)
    return Trainer(method, view, view, settings, {"order": order}, num_tasks=len(case.stream))


def learn_on_device(case: MethodCase, stop_after: int) -> Tensor:
    """The weights after training on a simulated device; after some steps a new method takes over."""
    with SimulatedDevice() as device:
        method = case.make().to(device.name)
        trainer = trainer_of(case, guarded(method, device))
        trainer.listener = Listeners([StopAfter(stop_after)])
        for task in case.stream:
            trainer.index = task.index
            try:
                trainer.learn(task)
            except Interrupted:
                saved = on_host(trainer.state())
                method = case.make(seed=9).to(device.name)
                trainer = trainer_of(case, guarded(method, device))
                trainer.load(saved, stop_after)
                trainer.index = task.index
                trainer.learn(task)
            evaluate(method, case.stream.test(task.index), case.stream.test_view, ALL_CLASSES)
        return torch.cat([value.detach().cpu().flatten() for value in method.net.parameters()])


def guarded(method: Method, device: SimulatedDevice) -> Method:
    """The method with steps that must not be read."""
    phases = method.phases

    def guard(phase: Phase) -> Phase:
        def observe(batch: Batch, optimizer: torch.optim.Optimizer) -> Terms:
            with device.step():
                return phase.observe(batch, optimizer)

        return replace(phase, observe=observe)

    method.phases = lambda task: [guard(phase) for phase in phases(task)]  # type: ignore[method-assign]
    return method


def on_host(state: Any) -> Any:
    """A state as a checkpoint holds it."""
    return tree_map(lambda value: value.cpu().clone() if isinstance(value, Tensor) else value, state)


class StopAfter(Listener):
    """Asks training to stop after some steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, position: Position, terms: Terms) -> None:
        self.steps -= 1

    def wants_stop(self) -> bool:
        return self.steps <= 0
