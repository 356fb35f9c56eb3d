"""The base class of methods and its parts: settings, phases, a frozen copy of a net, one optimiser step.

The file is long because it has all that the author of a method needs, in one place.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Self, cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from strongreplay.errors import ConfigError
from strongreplay.memory import Memory
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Problem, Split, Task, Terms, View
from strongreplay.sampling import draw_distinct

Step = Callable[[Batch, Optimizer], Terms]
MAIN = "main"  # the phase whose loss terms a record keeps


class MethodConfig(BaseModel):
    """Settings of a method: frozen, unknown keys refused; a field's description is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ReplayConfig(MethodConfig):
    """Settings of every method that draws batches from a memory."""

    memory_size: int = Field(200, ge=0, description="samples kept")
    replay_size: int | None = Field(
        None, ge=1, description="replayed samples per step; none: as many as the batch has"
    )


@dataclass(frozen=True)
class Phase:
    """One stage of training on a task: some epochs over some data; `observe` is called for every batch.

    A field that is none takes its value from the settings of the run (`train.*`) or from the task. Data that
    is slow to make may be a function; it is called when the phase begins and again after a resume.
    """

    name: str
    epochs: int | None
    observe: Step
    data: Split | Callable[[], Split] | None = None  # none: the task's training data; empty: no steps
    # Tensors or parameter groups; none: those of the net
    parameters: Iterable[Any] | Callable[[], Iterable[Any]] | None = None
    optimizer: Callable[[Iterable[Any]], Optimizer] | None = None  # makes one from the parameters
    rate: Callable[[int, float], float] | None = None  # from the epoch and the fraction of it that is done
    batch_size: int | None = None
    weights: Tensor | None = (
        None  # (N,) sampling weights, drawn with replacement; none: each sample once per epoch
    )
    view: View | None = None  # from images to inputs; none: the stream's training view
    generator: torch.Generator | None = None  # shuffles the samples
    begin: Callable[[], None] | None = None  # called once, before the first step; not after a resume

    @classmethod
    def of_steps(
        cls, name: str, count: Callable[[], int], observe: Step, begin: Callable[[], None] | None = None
    ) -> Self:
        """A phase of `count()` steps that choose their own samples; the batches passed to them are empty."""

        def rows() -> Split:
            return Split(torch.empty(count(), 0), torch.zeros(count(), dtype=torch.int64))

        order = torch.Generator()
        return cls(name, 1, observe, rows, batch_size=1, view=unchanged, generator=order, begin=begin)

    def make_optimizer(self, net: nn.Module, usual: Callable[[Iterable[Any]], Optimizer]) -> Optimizer:
        """The optimiser of the phase, or the usual one, for the parameters of the phase."""
        given = self.parameters() if callable(self.parameters) else self.parameters
        if given is None:
            has_rates = getattr(net, "body_rate", 1.0) != 1.0
            given = cast(Classifier, net).parameter_groups() if has_rates else net.parameters()
        return (self.optimizer or usual)(given)


def unchanged(images: Tensor) -> Tensor:
    return images


class Method(nn.Module):
    """A way to learn a stream. It is an nn.Module, so all its state is saved, loaded and moved together."""

    net: nn.Module
    resized_buffers: ClassVar[tuple[str, ...]] = ()  # buffers whose shapes change in training

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """One training step; returns the detached terms of its loss."""
        raise NotImplementedError(f"{type(self).__name__} must define observe(batch, optimizer)")

    def begin_task(self, task: Task) -> Task:
        """Prepare for a task; may return the task with exemplars added.

        It is called again after a resume; loading the saved state then overwrites its changes.
        """
        return task

    def phases(self, task: Task) -> list[Phase]:
        """The phases of a task, in order; each is resumable at any step. Must not change the method."""
        return [Phase(MAIN, None, self.observe)]

    def end_task(self, task: Task) -> None:
        """Take snapshots, compute importance weights, select exemplars; training belongs into `phases`."""

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Widen the head, and all else with one entry per class, for new classes."""
        cast(Classifier, self.net).grow(num_classes, generator)

    def predict(self, inputs: Tensor) -> Tensor:
        """(B, C) scores over classes."""
        return cast(Tensor, self.answering_net()(inputs))

    def answering_net(self) -> nn.Module:
        """The net that predicts, for methods that have several."""
        return self.net

    def predictors(self) -> dict[str, nn.Module]:
        """All nets that can predict, by name, if there are several; the record has the scores of each."""
        return {}

    def notice(self) -> str:
        """A sentence that the user should read before a run begins; usually none."""
        return ""

    def stream_batch_size(self, batch_size: int) -> int:
        """How many samples of a batch come from the stream; a method may fill the rest from its memory."""
        return batch_size

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        device = next(self.parameters()).device if self.resized_buffers else None
        for name in self.resized_buffers:  # allocate them in the shapes of the state; nothing, if it has none
            saved = state_dict.get(prefix + name)
            setattr(self, name, None if saved is None else torch.empty_like(saved, device=device))
        super()._load_from_state_dict(state_dict, prefix, *args)


class SavedGenerator(nn.Module):
    """A random generator whose state is saved and loaded with the method that owns it."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())


class OldNet(nn.Module):
    """A frozen copy of a net: no gradients, always in evaluation mode. It exists after the first `take()`."""

    def __init__(self, live: nn.Module) -> None:
        super().__init__()
        self._live = (live,)  # in a tuple, so that the live net is not registered as a part of this one
        self.copy: nn.Module | None = None

    @property
    def exists(self) -> bool:
        return self.copy is not None

    def take(self) -> None:
        """Copy the live net as it is now."""
        self.copy = deepcopy(self._live[0]).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "OldNet":
        return self  # stays in evaluation mode, so that its running statistics never change

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        assert self.copy is not None, "call OldNet.take() before the first forward pass"
        logits: Tensor = self.copy(inputs)
        return logits

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Submodules are loaded after this call, so the copy must exist by then if the state has one, or not.
        if not any(key.startswith(prefix + "copy.") for key in state_dict):
            self.copy = None
        elif self.copy is None:
            self.take()
        super()._load_from_state_dict(state_dict, prefix, *args)


def descend(optimizer: Optimizer, terms: Terms, l2: float = 0.0) -> Terms:
    """One optimiser step on the sum of the terms plus l2 * sum(weights^2); returns all terms detached."""
    optimizer.zero_grad()
    reduce(torch.add, terms.values()).backward()
    found = {name: term.detach() for name, term in terms.items()}
    if l2:
        found["l2"] = add_decay([p for group in optimizer.param_groups for p in group["params"]], l2)
    optimizer.step()
    return found


@torch.no_grad()
def add_decay(parameters: Sequence[Tensor], l2: float) -> Tensor:
    """Add the gradient of l2 * sum(theta^2) to the parameters' gradients, and return its value."""
    pairs = [(parameter.grad, parameter) for parameter in parameters if parameter.grad is not None]
    torch._foreach_add_([gradient for gradient, _ in pairs], [weight for _, weight in pairs], alpha=2 * l2)
    return l2 * torch.stack(torch._foreach_norm(tuple(parameters))).square().sum()


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Put the net into evaluation mode, and give every module its own mode back afterwards."""
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
    """The net's logits in evaluation mode; its mode and running statistics do not change."""
    with evaluation_mode(net):
        logits: Tensor = net(inputs)
    return logits


@torch.no_grad()
def predict_all(
    net: nn.Module, images: Tensor, view: View, ask: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Outputs of the net (or of `ask`, a part of it) for all images, in evaluation mode, in chunks."""
    device = next(net.parameters()).device
    with evaluation_mode(net):
        return torch.cat([(ask or net)(view(chunk.to(device))) for chunk in images.split(500)])


def squared_distance(logits: Tensor, target: Tensor, ragged: bool, summed: bool = False) -> Tensor:
    """Squared distance to the target: mean (or sum) over its columns, then mean over samples.

    The head may have more columns than the target; only the first ones are compared. In a ragged target, NaN
    marks the columns that did not exist when a sample was stored.
    """
    width = target.shape[1]
    logits = logits if logits.shape[1] == width else logits[:, :width]
    if not ragged:
        distance = mse_loss(logits, target)
        return distance * width if summed else distance
    known = ~target.isnan()
    sums = (logits - target.where(known, logits.detach())).square().sum(1)
    return (sums if summed else sums / known.sum(1)).mean()


def replay_count(config: ReplayConfig, batch: Batch) -> int:
    return len(batch) if config.replay_size is None else config.replay_size


def share_of_memory(method: str, memory_size: int, problem: Problem) -> int:
    """Number of samples to keep of each task; the same for all tasks."""
    if memory_size < problem.num_tasks:
        raise ConfigError(
            f"{method} needs at least one sample per task: memory_size must be >= {problem.num_tasks}, "
            f"got {memory_size}"
        )
    return memory_size // problem.num_tasks


def draw_share(memory: Memory[Any], train: Split, share: int, device: torch.device) -> Split:
    """At most `share` random samples of a task, for which the memory makes room."""
    chosen = train.take(draw_distinct(len(train), share, memory.generator)).to(device)
    memory.make_room(len(chosen))
    return chosen


def check_one_a_class(method: str, memory_size: int, problem: Problem) -> None:
    """Raise an error if the memory cannot hold one sample of every class."""
    if memory_size < problem.num_classes:
        raise ConfigError(
            f"{method} needs one sample per class: memory_size must be >= {problem.num_classes}, "
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
    "check_one_a_class",
    "descend",
    "draw_share",
    "eval_logits",
    "evaluation_mode",
    "predict_all",
    "replay_count",
    "share_of_memory",
    "squared_distance",
    "unchanged",
]
