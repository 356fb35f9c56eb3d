"""Gradient-based Sample Selection, greedy variant (GSS).

Paper: Aljundi et al., "Gradient Based Sample Selection for Online Continual Learning", 2019,
https://arxiv.org/abs/1903.08671
Reference: mammoth, tag neurips2020. It replays like ER; what differs is who is remembered. A score is 1 plus
the largest cosine between a gradient and those of remembered samples: 2 for a sample like another, 0 for the
opposite of all. While there is room a batch enters under its common score; later a batch at an angle above 90
degrees to all of them may replace samples with high scores by its own. Scores are not refreshed.
Difference from the reference: gradients are taken on normalised images; `scored_images="raw"` gives its
pixels in [0, 1].
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory, take_ids
from strongreplay.methods.base import Method, Problem, ReplayConfig, descend, replay_count
from strongreplay.methods.gradients import gradient_products
from strongreplay.protocol import Batch, Terms

FIRST_SCORE = 0.1  # of the first batch, which has nothing to be compared with
LEAST_SCORE = 1e-6  # a score of 0 would keep its sample for ever


class Sample(NamedTuple):
    images: Tensor
    labels: Tensor
    scores: Tensor  # (M,) in (0, 2]


class GSSConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept")
    gss_size: int = Field(32, ge=1, description="remembered samples a batch's gradients are compared with")
    scored_images: Literal["normalised", "raw"] = Field(
        "normalised", description="what gradients of scores are taken on: test view, or pixels (reference)"
    )


class GSS(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: GSSConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or GSSConfig(), problem.train_view
        self.plain_view = problem.test_view if self.config.scored_images == "normalised" else pixels
        self.memory = Memory(Sample, self.config.memory_size, problem.generator("memory"))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        inputs, labels, name = batch.inputs, batch.labels, "current"
        if len(self.memory):
            replayed = self.memory.sample(replay_count(self.config, batch))
            inputs, name = torch.cat([inputs, self.view(replayed.images)]), "mixed"
            labels = torch.cat([labels, replayed.labels])
        terms = descend(optimizer, {name: cross_entropy(self.net(inputs), labels)})
        self.remember(batch)
        return terms

    def remember(self, batch: Batch) -> None:
        """Store the first of the batch in free slots, and let the rest compete for taken ones."""
        scores = self.score(batch)  # (1 + B,): of the whole batch, then of each sample
        room = min(self.config.memory_size - len(self.memory), len(batch))
        if room:
            shared = scores[:1].expand(room)
            first = Sample(batch.images[:room], batch.labels[:room], shared)
            self.memory.append(first, take_ids(batch.ids, slice(room)))
        if room == len(batch):
            return
        # The step's host read: nearly all batches end here. On permuted MNIST, 1 of 2,814 went on that were
        # compared with 128 samples, and 7 of 2,345 with 10.
        arriving = scores.cpu().double().numpy()
        if arriving[0] >= 1:
            return
        taken = self.memory.rows.scores.cpu().double().numpy()
        draws = torch.rand(2, len(batch) - room, dtype=torch.float64, generator=self.memory.generator)
        slots = choose_slots(taken, arriving[1 + room :], draws.numpy())
        kept = torch.from_numpy((slots >= 0).nonzero()[0])
        if len(kept):
            rows = (kept + room).to(batch.labels.device)
            winners = Sample(batch.images[rows], batch.labels[rows], scores[1 + rows])
            self.memory.put(torch.from_numpy(slots)[kept], winners, take_ids(batch.ids, rows))

    def score(self, batch: Batch) -> Tensor:
        if len(self.memory) == 0:
            return batch.images.new_full((1 + len(batch),), FIRST_SCORE, dtype=torch.float32)
        drawn = self.memory.sample(self.config.gss_size)
        inputs = self.plain_view(torch.cat([batch.images, drawn.images]))
        products = gradient_products(self.net, inputs, torch.cat([batch.labels, drawn.labels]))
        return diversity_scores(products, len(batch))


def pixels(images: Tensor) -> Tensor:
    return images / 255 if images.dtype == torch.uint8 else images


def diversity_scores(products: Tensor, batch_size: int) -> Tensor:
    """(1 + B,) 1 + max cosine with the remaining gradients, for the mean of the first B and for each."""
    own, others = products[:batch_size, :batch_size], products[:batch_size, batch_size:]
    overlaps = torch.cat([others.mean(0, keepdim=True), others])
    squared = torch.cat([own.mean().clamp(min=0)[None], own.diagonal()])
    norms = torch.outer(squared.sqrt(), products.diagonal()[batch_size:].sqrt())
    cosines = overlaps / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    return (1 + cosines.amax(1)).clamp(LEAST_SCORE, 2)


def choose_slots(
    taken: NDArray[np.float64], arriving: NDArray[np.float64], draws: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The slot each arriving score takes, or -1: drawn by score, then won with odds old : new.

    One after the other, on plain numbers: a slot that has changed hands is drawn by its new score.
    """
    slots = np.full(len(arriving), -1)
    for number, score in enumerate(arriving):
        heights = taken.cumsum()
        slot = min(
            int(np.searchsorted(heights, draws[0, number] * heights[-1], side="right")), len(taken) - 1
        )
        if draws[1, number] < taken[slot] / (taken[slot] + score):
            slots[number], taken[slot] = slot, score
    return slots
