"""Settings and mathematics of X-DER: corrected logits, contrast of future heads, constraints on columns."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from strongreplay.methods.base import ReplayConfig
from strongreplay.protocol import Split, Task

FILL_SIZE = 32  # images of a forward pass at the end of a task


class XDERConfig(ReplayConfig):
    alpha: float = Field(0.3, ge=0, description="weight of the distance to stored logits; 0 skips that draw")
    beta: float = Field(0.8, ge=0, description="weight of the loss on replayed labels; 0 skips that draw")
    gamma: float = Field(0.85, ge=0, description="corrected logits reach this part of the right class's")
    contrast: float = Field(0.05, ge=0, description="lambda, weight of the contrast of future heads")
    temperature: float = Field(5.0, gt=0, description="temperature of the contrast")
    contrast_size: int = Field(64, ge=0, description="replayed images in the contrast, beside the batch")
    num_views: int = Field(2, ge=2, description="strong views of each image in the contrast")
    distance: float = Field(0.0, ge=0, description="weight of the distance to stored similarities")
    eta: float = Field(0.1, ge=0, description="weight of keeping future logits below those of the own task")
    past_eta: float = Field(0.0, ge=0, description="weight of keeping past probabilities below present ones")
    margin: float = Field(0.3, ge=0, description="margin of both")
    update: bool = Field(True, description="keep stored logits up to date")
    correction: Literal["clamped", "legacy"] = Field(
        "clamped", description="scale by the right class's logit, at least 0, or as it is (reference)"
    )
    align_bn: bool = Field(True, description="running statistics from one forward pass of a step")
    compete: Literal["present", "all"] = Field("present", description="columns of the stream's loss")
    crop_scale: float = Field(0.7, gt=0, le=1, description="smallest area of a strong view's crop")
    flip: bool = Field(False, description="strong views are flipped at random")
    jitter: bool = Field(False, description="strong views change colours at random")


class Replayed(NamedTuple):
    """Rows drawn from memory, each slot once, with the net's outputs for them."""

    slots: Tensor  # on the host
    labels: Tensor
    stored: Tensor
    outputs: Tensor


def correct_logits(
    stored: Tensor, fresh: Tensor, labels: Tensor, columns: Tensor, gamma: float, legacy: bool = False
) -> Tensor:
    """The stored logits with the given columns (a mask) replaced by fresh ones.

    If the largest fresh one exceeds a sample's stored logit of its label, its columns are scaled down to
    gamma times that logit. A negative logit counts as 0: a negative factor would turn signs (`legacy`).
    """
    right = stored.gather(1, labels[:, None])
    right = right if legacy else right.clamp(min=0)
    largest = fresh.masked_fill(~columns, -torch.inf).amax(1, keepdim=True)
    scaled = torch.where(largest > right, fresh * (gamma * right / largest), fresh)
    return torch.where(columns, scaled, stored)


def contrast(heads: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss of (H, N, D) outputs: mean over heads and anchors.

    The positives of an anchor are all other vectors with its label; each has at least one other view.
    """
    vectors = normalize(heads, dim=2)
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    likeness = (vectors @ vectors.mT / temperature).masked_fill(itself, -torch.inf)
    positive = (labels[:, None] == labels) & ~itself
    surprise = likeness.logsumexp(2, keepdim=True) - likeness
    return (surprise.where(positive, 0).sum(2) / positive.sum(1).clamp(min=1)).mean()


def similarity_distance(heads: Tensor, stored: Tensor) -> Tensor:
    """Squared difference between the similarities of (..., n, D) outputs and of stored logits.

    Similarities are products between samples, each row of length one; the sum is divided by n^2.
    """
    now, then = (normalize(outputs @ outputs.mT, dim=-1) for outputs in (heads, stored))
    return (now - then).square().sum((-2, -1)).mean() / heads.shape[-2] ** 2


def excess(high: Tensor, low: Tensor, margin: float) -> Tensor:
    """The mean of the positive values of high + margin - low; 0 if none is positive."""
    over = high + margin - low
    return over.relu().sum() / (over > 0).sum().clamp(min=1)


def largest(outputs: Tensor, columns: Tensor) -> Tensor:
    """(B,) the largest output among the columns, a mask for all samples or one for each."""
    return outputs.masked_fill(~columns, -torch.inf).amax(1)


def fill_batches(task: Task, room: int, generator: torch.Generator) -> Iterator[tuple[Split, Tensor]]:
    """Batches of a task in random order, each with the rows to store: the first of each class.

    A remainder of the room goes to random classes, one sample each.
    """
    labels, classes = task.train.labels.cpu(), task.classes
    order = torch.randperm(len(labels), generator=generator)
    lucky = torch.randperm(len(classes), generator=generator)[: room % len(classes)].tolist()
    wanted = torch.zeros(len(labels), dtype=torch.bool)
    for place, label in enumerate(classes):
        rows = torch.nonzero(labels[order] == label).flatten()
        wanted[rows[: room // len(classes) + (place in lucky)]] = True
    for rows, chosen in zip(order.split(FILL_SIZE), wanted.split(FILL_SIZE), strict=True):
        if chosen.any():
            yield task.train.take(rows), torch.nonzero(chosen).flatten()
