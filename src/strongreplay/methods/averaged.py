"""AveragedNet: an exponential moving average of a net's weights, updated at random steps.

CLS-ER has two of them, TAMiL one; a method derived from `Averaging` may predict with one. Only parameters are
averaged. A copy that is used in training goes into training mode with its owner: it normalises replayed
batches by their batch statistics and updates its running statistics from them. In evaluation mode these would
stay at mean 0 and variance 1, and its predictions would be random. A copy that is used only for prediction
copies the running statistics of the live net (`statistics="working"`).
"""

from copy import deepcopy
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from strongreplay.methods.base import Method, ReplayConfig
from strongreplay.nets import Classifier

Net = TypeVar("Net", bound=nn.Module)
Statistics = Literal["replay", "working"]


class AveragedNet(nn.Module, Generic[Net]):
    """A copy of a net, without gradients, that averages its weights; call `follow` after every step."""

    copy: Net

    def __init__(
        self,
        live: Net,
        rate: float,
        decay: float,
        generator: torch.Generator,
        statistics: Statistics = "replay",
    ) -> None:
        super().__init__()
        self._live = (live,)  # in a tuple, so that the live net is not registered as a part of this one
        self.copy = deepcopy(live).requires_grad_(False)
        for part in self.copy.modules():
            if isinstance(part, Classifier):
                part.is_average = any(weight.requires_grad for weight in live.parameters())
        self.rate, self.decay, self.statistics = rate, decay, statistics
        self.generator, self.num_steps = generator, 0

    @torch.no_grad()
    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.copy(*inputs)
        return logits

    def take_head(self) -> None:
        """Widen the head like the live net's; new rows are copied from it, known rows stay."""
        mine, its = (cast(Classifier, net) for net in (self.copy, self._live[0]))
        head, known = deepcopy(its.head).requires_grad_(False), mine.head.out_features
        with torch.no_grad():
            head.weight[:known], head.bias[:known] = mine.head.weight, mine.head.bias
        mine.head = head

    @torch.no_grad()
    def follow(self) -> None:
        """After a step of the live net: with probability `rate`, move the average towards its weights.

        The decay rises with the number of steps (not of updates) up to `decay`. Until then, with rate 1, the
        copy is the plain mean of the weights after all steps.
        """
        live, self.num_steps = self._live[0], self.num_steps + 1
        if torch.rand((), generator=self.generator).item() < self.rate:  # drawn on the CPU: no device sync
            share = max(1 / (self.num_steps + 1), 1 - self.decay)
            torch._foreach_lerp_(list(self.copy.parameters()), list(live.parameters()), share)
        if self.statistics == "working":
            for own, its in zip(self.copy.buffers(), live.buffers(), strict=True):
                own.copy_(its)

    def get_extra_state(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, "generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.num_steps = state["num_steps"]
        self.generator.set_state(state["generator"].cpu())


class AveragingConfig(ReplayConfig):
    average: float | None = Field(
        None, ge=0, lt=1, description="predict with a moving average of the weights; its decay per step"
    )


class Averaging(Method):
    """A method that may predict with a moving average of its net's weights; training is unaffected."""

    averaged: AveragedNet[nn.Module] | None
    longest: float  # decay of the average in a long training

    def average(self, decay: float | None, generator: torch.Generator) -> None:
        """Make the average with the given maximal decay; none: no average."""
        self.longest = decay or 0.0
        self.averaged = (
            None if decay is None else AveragedNet(self.net, 1.0, decay, generator, statistics="working")
        )

    def pace_average(self, num_steps: int) -> None:
        """Before a training of so many steps: lower the decay if it is short, so that the average learns it.

        After it at most a quarter of the average is from before. Up to 14 steps, it is the newest weights.
        """
        if self.averaged and num_steps:
            self.averaged.decay = max(min(self.longest, 1 - (14 / num_steps) ** 2), 0.0)

    def follow(self) -> None:
        """Update the average; to be called after every step."""
        if self.averaged:
            self.averaged.follow()

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        if self.averaged:
            self.averaged.take_head()

    def answering_net(self) -> nn.Module:
        return self.averaged or self.net

    def predictors(self) -> dict[str, nn.Module]:
        return {"averaged": self.averaged, "working": self.net} if self.averaged else {}
