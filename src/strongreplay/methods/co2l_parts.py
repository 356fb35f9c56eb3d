"""Parts of Co2L: the nets that give unit vectors, and its losses on similarities of vectors."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import normalize

from strongreplay.methods.base import OldNet
from strongreplay.nets import Classifier, seeded_init

BASE_TEMPERATURE = 0.07
NUM_PROJECTED = 128
MASKED = -1e30  # instead of -inf, so that 0 * log-probability is 0, not NaN


class Projector(nn.Module):
    """Maps each image to a unit vector. The classifier's head is not used here; only the probe trains it."""

    def __init__(self, classifier: Classifier, generator: torch.Generator) -> None:
        super().__init__()
        self.classifier, width = classifier, classifier.head.in_features
        with seeded_init(generator):
            self.projection = nn.Sequential(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, NUM_PROJECTED)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        return normalize(self.projection(self.classifier.features(inputs)), dim=1)


class Teacher(OldNet):
    """The old net; with `bn="batch"` its running statistics are removed, so it uses those of the batch."""

    def __init__(self, live: nn.Module, bn: Literal["batch", "running"]) -> None:
        super().__init__(live)
        self.bn = bn

    def take(self) -> None:
        super().take()
        assert self.copy is not None
        for layer in self.copy.modules():
            if self.bn == "batch" and isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None


def similarities(vectors: Tensor, temperature: float) -> Tensor:
    """(n, n) dot products divided by the temperature; the diagonal is so low that a softmax ignores it."""
    return (vectors / temperature @ vectors.t()).fill_diagonal_(MASKED)


class Goal(NamedTuple):
    """Target of a loss on similarities: weight * sum of the rows' cross-entropies with `wanted`."""

    wanted: Tensor  # (n, n) target probabilities, times the weight of their row; 0 on the diagonal
    rows: Tensor | None  # (n,) weights of the rows; none: 1
    weight: float
    temperature: float = 1  # divides the similarities once more


class Losses(Function):
    """For each goal, the cross-entropy between its targets and a softmax of the similarities.

    One function computes all goals, because it is bound by memory: it makes few passes over (n, n) matrices,
    and it returns the gradient as (G + G')V, one matrix product where autograd would need two.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, temperature: float, *goals: Goal) -> tuple[Tensor, ...]:
        relations, losses, ctx.differences = similarities(vectors, temperature), [], []
        top = relations.amax(1)
        for wanted, rows, weight, further in goals:
            parts = (relations if further == 1 else relations / further).softmax(1)
            # log-sum-exp of each row: the largest probability is exp(top - logsumexp).
            sizes = top / further - parts.amax(1).log_()
            if rows is not None:
                sizes, parts = sizes.mul_(rows), parts.mul_(rows[:, None])
            near = torch.dot(relations.view(-1), wanted.view(-1)) / further
            losses.append(weight * (sizes.sum() - near))
            ctx.differences.append((parts.sub_(wanted), weight / (further * temperature)))
        ctx.save_for_backward(vectors)
        return tuple(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        factors = [slope * weight for slope, (_, weight) in zip(slopes, ctx.differences, strict=True)]
        gradient, *others = [difference for difference, _ in ctx.differences]
        del ctx.differences  # the first one is reused in place as the gradient
        gradient.mul_(factors[0])
        for difference, factor in zip(others, factors[1:], strict=True):
            gradient.addcmul_(difference, factor)
        # contiguous() first: copying a transposed matrix is blocked, adding one is not, and so slower.
        moved = gradient.t().contiguous().add_(gradient) @ ctx.saved_tensors[0]
        return moved, *[None] * (1 + len(slopes))


def losses(vectors: Tensor, temperature: float, *goals: Goal) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = Losses.apply(vectors, temperature, *goals)  # type: ignore[no-untyped-call]
    return found


def contrast(vectors: Tensor, labels: Tensor, current: Tensor, temperature: float) -> Goal:
    """Supervised contrastive loss: the targets of an anchor are uniform over the others with its label.

    Anchors are the samples of current classes; the mean is over all vectors. Each anchor has at least one
    other vector of its label: the second view of its image.
    """
    # (C, n) the targets of each class's anchors: faster than comparing all pairs of labels.
    members = vectors.new_zeros(len(current), len(labels)).scatter_(0, labels[None], 1)
    members *= current[:, None] / members.sum(1, keepdim=True).sub_(1).clamp_(min=1)
    anchors = current.index_select(0, labels).to(vectors.dtype)
    wanted = members.index_select(0, labels).fill_diagonal_(0)
    return Goal(wanted, anchors, temperature / (BASE_TEMPERATURE * len(labels)))


def distil(old: Tensor, kappa: float, teacher_kappa: float, weight: float = 1) -> Goal:
    """Instance-wise relation distillation: the targets are the softmax of the old net's similarities."""
    return Goal(similarities(old, teacher_kappa).softmax(1), None, weight / len(old), kappa)
