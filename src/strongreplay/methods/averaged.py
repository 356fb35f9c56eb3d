"""AveragedNet: a net whose weights follow those of a live net slowly, at random steps.

CLS-ER keeps two, TAMiL one, and a method that is `Averaging` may have one to answer with. Only parameters are
averaged. A copy that takes part in learning goes into training mode with its owner: it normalises replayed
batches by their own statistics, and its running statistics are made of these. Held in evaluation mode they
would stay at mean 0 and variance 1, and the net would answer at random. A copy that only answers when all is
learnt takes the statistics of the live net.
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
    """A copy of a live net, without gradients, to be told of every step by `follow`."""

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
        self.rate, self.decay, self.statistics = rate, decay, statistics
        self.generator, self.num_steps = generator, 0

    @torch.no_grad()
    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.copy(*inputs)
        return logits

    def take_head(self) -> None:
        """The live net's head has grown: the rows that are new start as they are there."""
        mine, its = (cast(Classifier, net) for net in (self.copy, self._live[0]))
        head, known = deepcopy(its.head).requires_grad_(False), mine.head.out_features
        with torch.no_grad():
            head.weight[:known], head.bias[:known] = mine.head.weight, mine.head.bias
        mine.head = head

    @torch.no_grad()
    def follow(self) -> None:
        """The live net took a step: with probability `rate`, move towards it.

        The decay rises with the number of steps, not of moves, to its cap; until there, and with every step
        followed, the copy is the mean of all weights so far.
        """
        live, self.num_steps = self._live[0], self.num_steps + 1
        if torch.rand((), generator=self.generator).item() < self.rate:  # on the host: no device waits
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
        None, ge=0, lt=1, description="answer with a running average of the weights; share it keeps a step"
    )


class Averaging(Method):
    """Answers with an average of its net's weights over its steps, if it is told to; learns the same."""

    averaged: AveragedNet[nn.Module] | None

    def average(self, decay: float | None, generator: torch.Generator) -> None:
        """`decay` is the share that the average keeps of itself in a step, at most; none: no average."""
        self.averaged = (
            None if decay is None else AveragedNet(self.net, 1.0, decay, generator, statistics="working")
        )

    def follow(self) -> None:
        """After every step."""
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
