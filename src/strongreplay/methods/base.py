"""What every method is made of: the contract, its configuration, a frozen copy, one descent step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self, cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from strongreplay.errors import ConfigError
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Problem, Split, Task, Terms, View

Step = Callable[[Batch, Optimizer], Terms]
MAIN = "main"  # the phase whose loss terms a record keeps


class MethodConfig(BaseModel):
    """Settings of a method: frozen, unknown keys refused; a field's description is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ReplayConfig(MethodConfig):
    """Settings of every method that draws batches from a memory."""

    memory_size: int = Field(200, ge=0, description="samples kept")
    replay_size: int | None = Field(
        None, ge=1, description="samples replayed a step; none: as many as arrive"
    )


@dataclass(frozen=True)
class Phase:
    """One training of a task: passes over data, with `observe` called for every batch.

    Where a field is none, the settings of the run (`train.*`) or the task decide. What takes long to make
    may be given as a function; it is called when the phase begins and again after a resume.
    """

    name: str
    epochs: int | None
    observe: Step
    data: Split | Callable[[], Split] | None = None  # none: the task's training data; empty: no steps
    parameters: Iterable[Any] | None = None  # tensors or parameter groups; none: those of the net
    optimizer: Callable[[Iterable[Any]], Optimizer] | None = None  # made of the parameters
    rate: Callable[[int, float], float] | None = None  # of the epoch and the part of it that is done
    batch_size: int | None = None
    weights: Tensor | None = (
        None  # (N,) odds of each sample, drawn with replacement; none: each once an epoch
    )
    view: View | None = None  # from images to inputs; none: the stream's training view
    generator: torch.Generator | None = None  # of the order of samples
    begin: Callable[[], None] | None = None  # called once, before the first step; not after a resume

    @classmethod
    def of_steps(cls, name: str, count: int, observe: Step, begin: Callable[[], None] | None = None) -> Self:
        """`count` steps that choose their samples themselves; the batches they get are empty rows."""
        rows = Split(torch.empty(count, 0), torch.zeros(count, dtype=torch.int64))
        order = torch.Generator()
        return cls(name, 1, observe, data=rows, batch_size=1, view=unchanged, generator=order, begin=begin)


def unchanged(images: Tensor) -> Tensor:
    return images


class Method(nn.Module):
    """A way to learn a stream; an nn.Module, so that all it owns saves, loads and moves as one."""

    net: nn.Module

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """One training step; returns the detached terms of its loss."""
        raise NotImplementedError(f"{type(self).__name__} must define observe(batch, optimizer)")

    def begin_task(self, task: Task) -> Task:
        """May return a task with exemplars added. After a resume it is called again, and then undone."""
        return task

    def phases(self, task: Task) -> list[Phase]:
        """The trainings of a task, in order; each is resumable at any step. Changes nothing in the method."""
        return [Phase(MAIN, None, self.observe)]

    def end_task(self, task: Task) -> None:
        """Snapshots, importance weights, herding; no training."""

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """New classes were met: widen the head and whatever else has a place for each class."""
        cast(Classifier, self.net).grow(num_classes, generator)

    def predict(self, inputs: Tensor) -> Tensor:
        """(B, C) scores over classes."""
        logits: Tensor = self.answering_net()(inputs)
        return logits

    def answering_net(self) -> nn.Module:
        """The net that predicts; some methods have several."""
        return self.net

    def predictors(self) -> dict[str, nn.Module]:
        """Every net that can answer, by name, where there are several: each gets its scores in the record."""
        return {}

    def arriving(self, batch_size: int) -> int:
        """How many of a step's samples come from the stream; a method may keep a share for its memory."""
        return batch_size


class SavedGenerator(nn.Module):
    """A generator that saves and loads with the method that owns it."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())


class OldNet(nn.Module):
    """A frozen copy of a live net, absent until first taken: no gradients, never in training mode."""

    def __init__(self, live: nn.Module) -> None:
        super().__init__()
        self._live = (live,)  # in a tuple, so that the live net is not registered as a part of this one
        self.copy: nn.Module | None = None

    @property
    def exists(self) -> bool:
        return self.copy is not None

    def take(self) -> None:
        """Freeze the live net as it is now."""
        self.copy = deepcopy(self._live[0]).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "OldNet":
        return self  # a frozen net keeps its running statistics whatever mode its owner is put into

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        assert self.copy is not None, "OldNet.take() comes before the first answer"
        logits: Tensor = self.copy(inputs)
        return logits

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Children are loaded after this call, so a copy that the state has and we lack is made here.
        if self.copy is None and any(key.startswith(prefix + "copy.") for key in state_dict):
            self.take()
        super()._load_from_state_dict(state_dict, prefix, *args)


def descend(optimizer: Optimizer, terms: Terms, l2: float = 0.0) -> Terms:
    """One step down the sum of the terms, and of l2 times all squared weights; all come back detached."""
    optimizer.zero_grad()
    reduce(torch.add, terms.values()).backward()
    found = {name: term.detach() for name, term in terms.items()}
    if l2:
        found["l2"] = add_decay([p for group in optimizer.param_groups for p in group["params"]], l2)
    optimizer.step()
    return found


@torch.no_grad()
def add_decay(parameters: Sequence[Tensor], l2: float) -> Tensor:
    """Add the gradient of l2 * sum(theta^2), in closed form and one call, and return its value."""
    pairs = [(parameter.grad, parameter) for parameter in parameters if parameter.grad is not None]
    torch._foreach_add_([gradient for gradient, _ in pairs], [weight for _, weight in pairs], alpha=2 * l2)
    return l2 * torch.stack(torch._foreach_norm(tuple(parameters))).square().sum()


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Running statistics answer and stay as they are inside; every module's own mode afterwards."""
    training = [module for module in net.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def eval_logits(net: nn.Module, inputs: Tensor) -> Tensor:
    """The net's logits in evaluation mode, its own mode and statistics left as they were."""
    with evaluation_mode(net):
        logits: Tensor = net(inputs)
    return logits


@torch.no_grad()
def predict_all(
    net: nn.Module, images: Tensor, view: View, ask: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """What the net, or a part of it, says in evaluation mode to any number of images, on the net's device."""
    device = next(net.parameters()).device
    with evaluation_mode(net):
        return torch.cat([(ask or net)(view(chunk.to(device))) for chunk in images.split(500)])


def squared_distance(logits: Tensor, target: Tensor, ragged: bool, summed: bool = False) -> Tensor:
    """Mean over samples of the mean, or sum, over the columns their targets were made with.

    They are the first ones; in a ragged target NaN stands for those that some samples do not have.
    """
    width = target.shape[1]
    logits = logits if logits.shape[1] == width else logits[:, :width]
    if not ragged:
        distance = mse_loss(logits, target)
        return distance * width if summed else distance
    known = ~target.isnan()
    sums = (logits - target.where(known, logits.detach())).square().sum(1)
    return (sums if summed else sums / known.sum(1)).mean()


def allocate_buffers(module: nn.Module, state_dict: dict[str, Any], prefix: str, *names: str) -> None:
    """Make room for buffers that appear while learning, as the state has them, before it is loaded."""
    device = next(module.parameters()).device
    for name in names:
        saved = state_dict.get(prefix + name)
        setattr(module, name, None if saved is None else torch.empty_like(saved, device=device))


def replay_count(config: ReplayConfig, batch: Batch) -> int:
    return len(batch) if config.replay_size is None else config.replay_size


def share_of_memory(method: str, memory_size: int, problem: Problem) -> int:
    """Samples to keep of each task, the same number of every one."""
    if memory_size < problem.num_tasks:
        raise ConfigError(
            f"{method} needs at least one sample a task: memory_size must be >= {problem.num_tasks}, "
            f"got {memory_size}"
        )
    return memory_size // problem.num_tasks


def check_one_a_class(method: str, memory_size: int, problem: Problem) -> None:
    """Some methods cannot do without a sample of every class."""
    if memory_size < problem.num_classes:
        raise ConfigError(
            f"{method} needs one sample a class: memory_size must be >= {problem.num_classes}, "
            f"got {memory_size}"
        )


__all__ = [
    "MAIN",
    "Method",
    "MethodConfig",
    "OldNet",
    "Phase",
    "Problem",
    "ReplayConfig",
    "SavedGenerator",
    "allocate_buffers",
    "check_one_a_class",
    "descend",
    "eval_logits",
    "evaluation_mode",
    "predict_all",
    "replay_count",
    "share_of_memory",
    "squared_distance",
    "unchanged",
]
