"""The contracts of a method, one function each, and `check_method`, which checks all of them."""

import random
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from strongreplay.data.streams import accumulate
from strongreplay.memory import Memory
from strongreplay.methods import method_row
from strongreplay.methods.base import Method, OldNet
from strongreplay.methods.row import row_of_class
from strongreplay.protocol import Batch, Terms, derive_generator
from strongreplay.testing.case import (
    ALL_CLASSES,
    BATCH_SIZE,
    MEMORY_SIZE,
    NUM_CLASSES,
    ContractError,
    MethodCase,
    differences,
    expect,
    snapshot,
    weights,
)
from strongreplay.testing.device import check_device, check_low_precision
from strongreplay.training.engine import evaluate, train_task


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
    first, again, other = (weights(method.net) for method in (case.learnt, learnt(case, 0), learnt(case, 1)))
    remedy = "Draw from problem.generator(name) alone, and keep no state outside the method."
    expect(torch.equal(first, again), f"{case.row.label}: two runs of one seed differ.", remedy)
    expect(not torch.equal(first, other), f"{case.row.label}: another seed changes nothing.", remedy)


def learnt(case: MethodCase, seed: int) -> Method:
    method = case.make(seed)
    case.learn(method, seed)
    return method


def check_global_generators(case: MethodCase) -> None:
    """The global generators of torch, numpy and random are neither changed nor used."""

    def states() -> tuple[Any, ...]:
        numbers = cast(tuple[Any, ...], np.random.get_state())[1].tolist()
        return torch.get_rng_state().tolist(), random.getstate(), numbers

    first = weights(case.learnt.net)
    torch.rand(3)
    before = states()
    again = weights(learnt(case, 0).net)
    remedy = "Draw with generator=problem.generator(name)."
    for what, old, new in zip(("torch", "random", "numpy"), before, states(), strict=True):
        expect(old == new, f"{case.row.label} moves the global generator of {what}.", remedy)
    expect(torch.equal(first, again), f"{case.row.label} reads the global generator of torch.", remedy)


def check_state(case: MethodCase) -> None:
    """A state saved after any step and loaded into a new method gives the same bits as no interruption."""

    def go(method: Method, start: int, end: int) -> Method:
        for number in range(start, end):
            task = case.stream[number // 3]
            if number % 3 == 0:
                method.begin_task(task)
            case.step(method, case.batch(task.index, BATCH_SIZE * (number % 3)))
            if number % 3 == 2:
                method.end_task(task)
        return method

    straight, early, done = snapshot(go(case.make(), 0, 9)), case.make(), 0
    for stop in (0, 2, 3, 7):  # before the first step, in the first task, at its end, in the last task
        go(early, done, stop)
        resumed, done = case.make(seed=9), stop
        resumed.load_state_dict(snapshot(early))
        apart = differences(straight, snapshot(go(resumed, stop, 9)))
        remedy = "Keep tensors as buffers, generators in SavedGenerator, the rest in get_extra_state."
        what = ", ".join(apart[:5])
        expect(
            not apart,
            f"{case.row.label}: saved after {stop} steps, it does not continue the same: {what}.",
            remedy,
        )


def check_moves(case: MethodCase) -> None:
    """Every tensor it holds is a parameter or a buffer, so that method.to(device) moves it."""
    for name, module in case.learnt.named_modules():
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
    method, stream, name = case.learnt, case.stream, case.row.label
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
    """A short last batch and batches of one sample are learnt."""
    method, task, view, order = learnt(case, 0), case.stream[1], case.stream.test_view, torch.Generator()
    for count, size in ((17, 16), (1, 16), (5, 1)):
        few = task.with_train(task.train.take(torch.arange(count)))
        optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
        train_task(method, few, view, optimizer, epochs=1, batch_size=size, generator=order)
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
    method = learnt(case, 0)
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
    method = learnt(case, 0)
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


def check_learning(case: MethodCase) -> None:
    """It learns six easy classes at once, to more than 90 %; with pretrained weights if it needs them."""
    method = (case.pretrained() if case.row.needs_weights and case.net is None else case).make()
    case.learn(method, epochs=12, stream=accumulate(case.stream))
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
