"""Checks for a user's own classes: `check_method`, `check_net`, `check_stream`, `check_listener`.

    from strongreplay.testing import check_method
    check_method(MyMethod)

Each check learns a small stream of three tasks, takes seconds and needs no pytest. A broken contract raises
a ContractError that says which one and how to fix it. The methods of this package pass the same checks.
"""

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from strongreplay.data.streams import Stream, accumulate, split_by_class
from strongreplay.memory import Memory
from strongreplay.methods import MethodRow, method_row
from strongreplay.methods.base import Method, OldNet, Phase
from strongreplay.methods.row import row_of_class
from strongreplay.nets import build_net, seeded_init
from strongreplay.protocol import Batch, Problem, Split, Task, Terms, derive_generator
from strongreplay.simulated_device import SimulatedDevice
from strongreplay.training.engine import evaluate, train_task
from strongreplay.training.events import Listener, Listeners, Outcome, Position, RunInfo
from strongreplay.training.precision import Precision
from strongreplay.training.settings import TrainConfig
from strongreplay.training.trainer import Interrupted, Trainer

NUM_CLASSES, NUM_TASKS, SHAPE, BATCH_SIZE, MEMORY_SIZE = 6, 3, (1, 6, 6), 16, 24
ALL_CLASSES = tuple(range(NUM_CLASSES))


class ContractError(AssertionError):
    """A contract is broken; the message says which one and how to fix it."""


def expect(holds: bool, contract: str, remedy: str) -> None:
    if not holds:
        raise ContractError(f"{contract} {remedy}")


def make_split(per_class: int, seed: int) -> Split:
    """Noise images with a bright patch whose position depends on the class, in shuffled order."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(NUM_CLASSES).repeat(per_class)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    images = torch.randint(0, 100, (len(labels), *SHAPE), dtype=torch.uint8, generator=generator)
    for number, label in enumerate(labels.tolist()):
        row, column = divmod(label, 3)
        images[number, :, 3 * row : 3 * row + 3, 2 * column : 2 * column + 2] += 150
    return Split(images, labels)


def small_stream() -> Stream:
    """Three tasks of two classes of 6 x 6 images that a small net learns in a few steps."""
    return split_by_class(make_split(40, seed=1), make_split(20, seed=2), NUM_CLASSES, NUM_TASKS)


@dataclass(frozen=True)
class MethodCase:
    """A method to check, the stream it learns, and how a new one is made."""

    row: MethodRow
    settings: dict[str, Any] = field(default_factory=dict)
    net: Callable[[], nn.Module] | None = None  # draws its weights from the global generator
    stream: Stream = field(default_factory=small_stream)

    def make(self, seed: int = 0) -> Method:
        settings = ({"memory_size": MEMORY_SIZE} if self.row.has_memory else {}) | self.settings
        view = self.stream.train_view(derive_generator(seed, "replayed views"))
        num_classes, test_view = self.stream.num_classes, self.stream.test_view
        images = make_split(10, seed=3).inputs  # for methods that need unlabelled ones
        problem = Problem(num_classes, len(self.stream), view, test_view, seed, images)
        return self.row.build(self.make_net(seed), problem, self.row.config(**settings))

    def make_net(self, seed: int) -> nn.Module:
        generator = derive_generator(seed, "net")
        if self.net is not None:
            with seeded_init(generator):
                return self.net()
        name, width = (self.row.net, 8) if self.row.net else ("mlp", 32)
        return build_net(name, SHAPE, NUM_CLASSES, generator, width=width)

    def pretrained(self) -> "MethodCase":
        """The same, with a net that was trained on images like those of the stream and has a fresh head."""

        def net() -> nn.Module:
            made: Any = build_net(
                self.row.net or "mlp", SHAPE, NUM_CLASSES, derive_generator(0, "net"), width=8
            )
            plain, images = MethodCase(method_row("sgd"), net=lambda: made).make(), make_split(40, seed=4)
            task, order = Task(0, ALL_CLASSES, images, images), derive_generator(0, "order")
            optimizer = torch.optim.Adam(made.parameters(), lr=0.01)
            view = self.stream.test_view
            train_task(plain, task, view, optimizer, epochs=20, batch_size=BATCH_SIZE, generator=order)
            made.head.reset_parameters()
            return cast(nn.Module, made)

        return replace(self, net=net)

    def learn(self, method: Method, seed: int = 0, epochs: int = 1, stream: Stream | None = None) -> None:
        stream = stream or self.stream
        order, view = derive_generator(seed, "order"), stream.train_view(derive_generator(seed, "views"))
        for task in stream:
            self.learn_task(method, task, order, epochs, view)

    def learn_task(
        self, method: Method, task: Task, order: torch.Generator, epochs: int = 1, view: Any = None
    ) -> None:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
        if self.row.needs_weights:  # prompts of a frozen net hardly move by plain gradients
            optimizer = torch.optim.Adam(method.net.parameters(), lr=0.01)
        view = view or self.stream.test_view
        train_task(method, task, view, optimizer, epochs=epochs, batch_size=BATCH_SIZE, generator=order)

    def batch(self, task: int = 0, start: int = 0) -> Batch:
        split, rows = self.stream[task].train, torch.arange(start, start + BATCH_SIZE)
        images = split.inputs[rows]
        return Batch(rows, images, self.stream.test_view(images), split.labels[rows])

    def step(self, method: Method, batch: Batch) -> Terms:
        method.train()
        return method.observe(batch, torch.optim.SGD(method.net.parameters(), lr=0.1))


def weights(module: nn.Module) -> Tensor:
    return torch.cat([torch.empty(0), *(value.detach().flatten().clone() for value in module.parameters())])


def snapshot(method: Method) -> dict[str, Any]:
    """A copy of everything that is saved."""
    return deepcopy(dict(method.state_dict()))


def differences(first: Any, second: Any, where: str = "") -> list[str]:
    """The names of values that differ between two states by at least one bit; NaN equals NaN."""
    if isinstance(first, dict) and isinstance(second, dict):
        keys = [*first, *(key for key in second if key not in first)]
        return [d for key in keys for d in differences(first.get(key), second.get(key), f"{where}/{key}")]
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.shape != second.shape or first.dtype != second.dtype:
            return [where]
        unset = first.isnan() & second.isnan() if first.is_floating_point() else torch.zeros(()).bool()
        return [] if bool(((first == second) | unset).all()) else [where]
    return [] if first == second else [where]


def check_terms(case: MethodCase) -> None:
    """observe returns named, finite, detached scalars."""
    method, name, observe = case.make(), case.row.label, case.row.method_class.observe

    def spy(batch: Batch, optimizer: torch.optim.Optimizer) -> Terms:
        terms = observe(method, batch, optimizer)
        expect(bool(terms), f"{name}.observe returned no terms.", "Return {name: value} of each part.")
        for key, term in terms.items():
            right = isinstance(term, Tensor) and term.shape == () and not term.requires_grad
            remedy = "Return what descend(optimizer, terms) returns, or term.detach()."
            expect(right, f"{name}.observe: the term {key} must be a detached scalar tensor.", remedy)
            expect(bool(term.isfinite()), f"{name}.observe: the term {key} is {term}.", "Find the overflow.")
        return terms

    method.observe = spy  # type: ignore[method-assign]
    case.learn(method)


def check_deterministic(case: MethodCase) -> None:
    """The same seed gives the same weights, and another seed gives other weights."""
    found = []
    for seed in (0, 0, 1):
        method = case.make(seed)
        case.learn(method, seed)
        found.append(weights(method.net))
    remedy = "Draw from problem.generator(name) alone, and keep no state outside the method."
    expect(torch.equal(found[0], found[1]), f"{case.row.label}: two runs of one seed differ.", remedy)
    expect(not torch.equal(found[0], found[2]), f"{case.row.label}: another seed changes nothing.", remedy)


def check_global_generators(case: MethodCase) -> None:
    """The global generators of torch, numpy and random are neither changed nor used."""

    def states() -> tuple[Any, ...]:
        numbers = cast(tuple[Any, ...], np.random.get_state())[1].tolist()
        return torch.get_rng_state().tolist(), random.getstate(), numbers

    def trained() -> Tensor:
        method = case.make()
        case.learn(method)
        return weights(method.net)

    before = states()
    first = trained()
    remedy = "Draw with generator=problem.generator(name)."
    for what, old, new in zip(("torch", "random", "numpy"), before, states(), strict=True):
        expect(old == new, f"{case.row.label} moves the global generator of {what}.", remedy)
    torch.rand(3)
    expect(torch.equal(first, trained()), f"{case.row.label} reads the global generator of torch.", remedy)


def check_state(case: MethodCase) -> None:
    """A state saved after any step and loaded into a new method gives the same bits as no interruption."""
    for stop in (0, 2, 3, 7):  # before the first step, in the first task, at its end, in the last task

        def go(method: Method, start: int, end: int) -> None:
            for number in range(start, end):
                task = case.stream[number // 3]
                if number % 3 == 0:
                    method.begin_task(task)
                case.step(method, case.batch(task.index, BATCH_SIZE * (number % 3)))
                if number % 3 == 2:
                    method.end_task(task)

        straight, early, resumed = case.make(), case.make(), case.make(seed=9)
        go(straight, 0, 9)
        go(early, 0, stop)
        resumed.load_state_dict(snapshot(early))
        go(resumed, stop, 9)
        apart = differences(snapshot(straight), snapshot(resumed))
        remedy = "Keep tensors as buffers, generators in SavedGenerator, the rest in get_extra_state."
        what = ", ".join(apart[:5])
        expect(
            not apart,
            f"{case.row.label}: saved after {stop} steps, it does not continue the same: {what}.",
            remedy,
        )


def check_moves(case: MethodCase) -> None:
    """Every tensor it holds is a parameter or a buffer, so that method.to(device) moves it."""
    method = case.make()
    case.learn(method)
    for name, module in method.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            continue  # it saves and moves its tensors itself
        for key, value in vars(module).items():
            where = f"{case.row.label}.{name + '.' if name else ''}{key}"
            remedy = "Use self.register_buffer(name, tensor)."
            expect(
                not isinstance(value, Tensor), f"{where} is a tensor that .to(device) does not move.", remedy
            )


def check_evaluation(case: MethodCase) -> None:
    """Predicting gives a float score for every class and changes nothing, not even a generator."""
    method, stream, name = case.make(), case.stream, case.row.label
    case.learn(method)
    method.train()
    before, modes = snapshot(method), [module.training for module in method.modules()]
    results = []
    for task in [*range(len(stream)), *range(len(stream))]:
        own = stream.task_classes[task]
        results.append(evaluate(method, stream.test(task), stream.test_view, ALL_CLASSES, own, batch_size=7))
        expect(
            results[-1][0] <= results[-1][1], f"{name}: Task-IL is below Class-IL.", "Give a score a class."
        )
    same = results[: len(stream)] == results[len(stream) :] and not differences(before, snapshot(method))
    expect(same, f"{name}.predict changes the method.", "Draw and store nothing in predict.")
    modes_after = [module.training for module in method.modules()]
    expect(modes == modes_after, f"{name}.predict leaves another mode.", "Use evaluation_mode(net).")
    with torch.no_grad():
        scores = method.eval().predict(stream.test_view(stream.test(0).inputs[:5]))
    right = scores.shape == (5, NUM_CLASSES) and scores.dtype == torch.float32
    expect(
        right,
        f"{name}.predict must give (B, C) float32 scores, got {tuple(scores.shape)} {scores.dtype}.",
        "",
    )


def check_memory(case: MethodCase) -> None:
    """A memory does not exceed its size and keeps stored images (not inputs) of seen classes."""
    method, stream = case.make(), case.stream
    order = derive_generator(0, "order")
    for task in (stream[0], stream[1]):
        case.learn_task(method, task, order)
    memories = [module for module in method.modules() if isinstance(module, Memory)]
    given = torch.cat([stream[t].train.inputs for t in (0, 1)]).flatten(1)
    if case.row.has_memory:
        remedy = "Keep samples in strongreplay.Memory; it saves, loads and moves with the method."
        expect(bool(memories), f"{case.row.label} has memory_size but no Memory.", remedy)
    for memory in memories:
        rows, size = memory.rows._asdict(), case.settings.get("memory_size", MEMORY_SIZE)
        fits = 0 < len(memory) <= memory.capacity == size
        expect(
            fits,
            f"{case.row.label} keeps {len(memory)} samples of {size}.",
            "Use Memory(Sample, memory_size, ...).",
        )
        raw = rows["images"].dtype == given.dtype and all(
            bool((row == given).all(1).any()) for row in rows["images"].flatten(1)
        )
        expect(raw, f"{case.row.label} keeps changed images.", "Store batch.images, not batch.inputs.")
        labels = set(rows.get("labels", torch.tensor([0])).tolist())
        expect(labels <= {0, 1, 2, 3}, f"{case.row.label} keeps labels of unseen classes: {labels}.", "")


def check_small_batches(case: MethodCase) -> None:
    """A batch of one sample and a short last batch are learnt."""
    for count, size in ((1, 16), (17, 16), (5, 1)):
        method, task = case.make(), case.stream[1]
        case.learn(method)
        task = task.with_train(task.train.take(torch.arange(count)))
        optimizer, view = torch.optim.SGD(method.net.parameters(), lr=0.1), case.stream.test_view
        order = torch.Generator()
        train_task(method, task, view, optimizer, epochs=1, batch_size=size, generator=order)
        finite = bool(weights(method.net).isfinite().all())
        expect(
            finite, f"{case.row.label}: weights are not finite after {count} samples.", "Guard empty means."
        )


def check_gradients(case: MethodCase) -> None:
    """A step does not depend on the gradients that are in .grad before it."""
    clean, poisoned, batch = case.make(), case.make(), case.batch()
    for parameter in poisoned.net.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    case.step(clean, batch), case.step(poisoned, batch)
    remedy = "Call optimizer.zero_grad() before backward, or use descend."
    same = torch.equal(weights(clean.net), weights(poisoned.net))
    expect(same, f"{case.row.label}: gradients of one step leak into the next.", remedy)


def check_frozen_nets(case: MethodCase) -> None:
    """Old nets do not change: fixed weights and mode, no gradients, no parameter shared with the live net."""
    method = case.make()
    case.learn(method)
    frozen = [module for module in method.modules() if isinstance(module, OldNet)]
    before = [weights(module) for module in frozen]
    case.step(method, case.batch(2))
    live = {id(parameter) for parameter in method.net.parameters()}
    for module, old in zip(frozen, before, strict=True):
        inner = [each for each in module.modules() if each is not module]
        still = torch.equal(weights(module), old) and not any(each.training for each in inner)
        still = still and all(not p.requires_grad and p.grad is None for p in module.parameters())
        still = still and not live & {id(parameter) for parameter in module.parameters()}
        expect(
            still, f"{case.row.label}: an old net changes while the live one learns.", "Use OldNet.take()."
        )


def check_settings(case: MethodCase) -> None:
    """Every setting has a help text, and a setting that does not exist is refused."""
    config = case.row.config
    for key, held in config.model_fields.items():
        remedy = 'Write Field(default, description="what it does").'
        expect(bool(held.description), f"{case.row.label}: the setting {key} has no help text.", remedy)
    try:
        config(**{"no_such_setting": 1})
    except ValueError:
        return
    raise ContractError(
        f"{case.row.label} takes settings it does not have. Derive its Config from MethodConfig."
    )


def check_growth(case: MethodCase) -> None:
    """If the row says that the method can grow, it continues training after its head has grown."""
    if not case.row.grows:
        return
    method = case.make()
    case.learn(method)
    method.grow(NUM_CLASSES + 2, derive_generator(0, "growth"))
    terms = case.step(method, case.batch(2))
    finite = all(bool(term.isfinite()) for term in terms.values())
    inputs = case.stream.test_view(case.stream.test(0).inputs[:5])
    with torch.no_grad():
        wide = method.eval().predict(inputs).shape == (5, NUM_CLASSES + 2)
    expect(
        finite and wide,
        f"{case.row.label} does not continue after grow().",
        "Widen every tensor that has one entry per class.",
    )


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
    exact = case.make()
    case.learn(exact)
    moved = not torch.equal(weights(method.net), weights(exact.net))
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
        return self.steps == 0


def check_learning(case: MethodCase) -> None:
    """It learns six easy classes at once, to more than 90 %; with pretrained weights if it needs them."""
    method = (case.pretrained() if case.row.needs_weights and case.net is None else case).make()
    case.learn(method, epochs=30, stream=accumulate(case.stream))
    accuracy = evaluate(method, case.stream.test(0), case.stream.test_view, ALL_CLASSES)[0]
    remedy = "Does observe call optimizer.step()?"
    expect(accuracy > 90, f"{case.row.label} gets {accuracy:.0f} % on images that any method learns.", remedy)


METHOD_CHECKS: dict[str, Callable[[MethodCase], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_settings, check_global_generators, check_deterministic, check_terms, check_gradients,
        check_state, check_moves, check_evaluation, check_memory, check_small_batches, check_frozen_nets,
        check_growth, check_learning, check_low_precision, check_device,
    )
}  # fmt: skip


def check_method(
    method: "type[Method] | str", net: Callable[[], nn.Module] | None = None, **settings: Any
) -> None:
    """Check a class, or a name such as `mine.py:MyMethod`, against all contracts of a method."""
    row = method_row(method) if isinstance(method, str) else row_of_class(method.__name__, method, None)
    case = MethodCase(row, settings, net)
    for check in METHOD_CHECKS.values():
        check(case)


def check_net(
    make: Callable[..., nn.Module], input_shape: tuple[int, ...] = SHAPE, num_classes: int = 6
) -> None:
    """Check a function of (input_shape, num_classes): logits, seeded weights, gradients, saving."""
    nets = []
    for _ in range(2):
        with seeded_init(derive_generator(0, "net")):
            nets.append(make(input_shape, num_classes))
    net, again = nets
    expect(isinstance(net, nn.Module), f"The net is a {type(net).__name__}.", "Return an nn.Module.")
    same = torch.equal(weights(net), weights(again))
    expect(same, "Two nets of one seed differ.", "Draw initial weights with torch's own initialisers.")
    inputs = torch.rand(4, *input_shape, generator=derive_generator(0, "inputs"))
    logits = net(inputs)
    shape = tuple(logits.shape)
    expect(
        shape == (4, num_classes), f"The net gives {shape}, not (4, {num_classes}).", "Return (B, C) logits."
    )
    logits.square().sum().backward()
    idle = [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    expect(not idle, f"No gradient reaches {', '.join(idle)}.", "Use these parameters, or leave them out.")
    net.eval()
    with torch.no_grad():
        whole, single = net(inputs), torch.cat([net(each[None]) for each in inputs])
    apart = torch.allclose(whole, single, atol=1e-4)
    expect(
        apart, "In evaluation mode a sample's logits depend on its batch.", "Use running statistics there."
    )
    again.load_state_dict(net.state_dict())
    with torch.no_grad():
        loaded = torch.equal(again.eval()(inputs), whole)
    expect(loaded, "A loaded net answers differently.", "Keep tensors as parameters or buffers.")


def check_stream(make: Callable[[], Stream] | Stream) -> None:
    """Check a stream: tasks have data and correct labels, a second build is equal, views give floats."""
    first, again = (make, make) if isinstance(make, Stream) else (make(), make())
    expect(len(first) > 0, "The stream has no tasks.", "Give at least one.")
    for index in range(len(first)):
        task, classes = first[index], set(first.task_classes[index])
        for part, split in (("train", task.train), ("test", first.test(index))):
            where = f"Task {index}, {part}:"
            expect(len(split) > 0, f"{where} no samples.", "Leave the task out, or give it some.")
            labels = set(split.labels.tolist())
            known = labels <= classes if part == "test" or not first.train_classes else True
            expect(known, f"{where} labels {labels} are not of its classes {classes}.", "Fix task_classes.")
            shape = tuple(split.inputs.shape[1:])
            expect(
                shape == tuple(first.input_shape), f"{where} inputs are {shape}.", f"Say input_shape={shape}."
            )
        same = torch.equal(task.train.inputs, again[index].train.inputs)
        expect(same, f"Task {index} differs when it is made again.", "Draw from a generator of the seed.")
        view = first.train_view(derive_generator(0, "views"))
        inputs = view(task.train.inputs[:2])
        expect(
            inputs.is_floating_point(), "The view gives no floats.", "Use scale from strongreplay.data.views."
        )


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
