"""Nearest class mean (NCM) on frozen features.

Paper: Mensink et al., "Distance-Based Image Classification: Generalizing to New Classes at Near-Zero Cost",
2013, https://doi.org/10.1109/TPAMI.2013.83
The body of the net is not trained. Each class is the mean of its features, whatever the order of arrival, and
a sample belongs to the nearest mean. That is a linear function of the features, so the answer is written into
the head of the net: w = mean, b = -|mean|^2 / 2. A mean is the same after one epoch and after many, so a task
takes one.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot, pad
from torch.optim import Optimizer

from strongreplay.methods.base import MAIN, Method, MethodConfig, Phase, Problem, evaluation_mode
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Task, Terms

UNSEEN = -1e9  # logit of a class without samples; finite, so that a softmax over all columns is too


class NCMConfig(MethodConfig):
    pass


class NCM(Method):
    net: Classifier
    counts: Tensor  # (C,) samples of each class
    means: Tensor  # (C, D)
    scale: Tensor  # factor of all logits: answers do not depend on it, probabilities do

    def __init__(self, net: nn.Module, problem: Problem, config: MethodConfig | None = None) -> None:
        super().__init__()
        self.net = with_features(net, type(self).__name__.lower(), problem.num_classes)
        head = self.net.head
        self.register_buffer("counts", torch.zeros(head.out_features))
        self.register_buffer("means", torch.zeros(head.out_features, head.in_features))
        self.register_buffer("scale", torch.ones(()))
        self.is_solved = True  # whether the head is that of the means; before the first sample it is as made

    def phases(self, task: Task) -> list[Phase]:
        return [Phase(MAIN, 1, self.observe)]

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        with torch.no_grad(), evaluation_mode(self.net):
            distance = self.count(self.net.features(batch.inputs), batch.labels)
        self.is_solved = False
        return {"within": distance}

    def count(self, features: Tensor, labels: Tensor) -> Tensor:
        """Add samples to the means; returns their mean squared distance to the means of their classes."""
        members = one_hot(labels, len(self.counts)).to(features.dtype)  # (B, C)
        arriving = members.sum(0)
        shift = members.t() @ features - arriving[:, None] * self.means
        self.counts += arriving
        self.means += shift / self.counts.clamp(min=1)[:, None]
        return (features - self.means[labels]).square().sum(1).mean()

    def solution(self) -> tuple[Tensor, Tensor]:
        """Weights and biases of the head, of all classes as if seen."""
        return self.means, -self.means.square().sum(1) / 2

    def solved_head(self) -> tuple[Tensor, Tensor]:
        weight, bias = self.solution()
        seen = self.counts > 0
        weight, bias = weight * self.scale, bias * self.scale
        return weight * seen[:, None], bias.where(seen, torch.full_like(bias, UNSEEN))

    def rescale(self, factor: float) -> None:
        """Multiply all logits."""
        self.scale *= factor
        self.write_head()

    def end_task(self, task: Task) -> None:
        self.write_head()

    @torch.no_grad()
    def write_head(self) -> None:
        weight, bias = self.solved_head()
        self.net.head.weight.copy_(weight)
        self.net.head.bias.copy_(bias)
        self.is_solved = True

    def predict(self, inputs: Tensor) -> Tensor:
        if self.is_solved:
            return super().predict(inputs)
        with torch.no_grad():
            return linear(self.net.features(inputs), *self.solved_head())

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        added = max(num_classes - len(self.counts), 0)
        self.counts, self.means = pad(self.counts, (0, added)), pad(self.means, (0, 0, 0, added))

    def get_extra_state(self) -> dict[str, Any]:
        return {"is_solved": self.is_solved}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.is_solved = state["is_solved"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (saved := state_dict.get(f"{prefix}counts")) is not None:  # it may know another number of classes
            self.counts = self.counts.new_zeros(len(saved))
            self.means = self.means.new_zeros(len(saved), self.means.shape[1])
            state_dict.setdefault(f"{prefix}scale", torch.ones(()))  # older states have none
        super()._load_from_state_dict(state_dict, prefix, *args)
