"""Gradient-based Sample Selection, greedy variant (GSS).

Paper: Aljundi et al., "Gradient Based Sample Selection for Online Continual Learning", 2019,
https://arxiv.org/abs/1903.08671
Reference: mammoth, tag neurips2020. It replays like ER, but selects the stored samples by score: 1 plus the
largest cosine between a sample's gradient and those of stored samples, so 2 for a duplicate and 0 for the
opposite of all. While the memory has free slots, a batch is stored with one common score. Later, only a batch
whose mean gradient has a negative cosine with all of them may replace samples of high score. Scores are not
updated. Difference from the reference: gradients are computed on normalised images; `scored_images="raw"`
uses pixels in [0, 1], as the reference does.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory, take_ids
from strongreplay.methods.base import Method, Problem, ReplayConfig, SavedGenerator, descend, replay_count
from strongreplay.methods.gradients import gradient_products
from strongreplay.methods.samples import ScoredSamples
from strongreplay.protocol import Batch, Terms

FIRST_SCORE = 0.1  # score of the first batch, when there is nothing to compare it with
LEAST_SCORE = 1e-6  # a sample with score 0 could never be replaced


class GSSConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept")
    gss_size: int = Field(32, ge=1, description="stored samples that a batch's gradients are compared with")
    scored_images: Literal["normalised", "raw"] = Field(
        "normalised", description="inputs that are scored: the test view, or raw pixels (reference)"
    )


class GSS(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: GSSConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or GSSConfig(), problem.train_view
        self.plain_view = problem.test_view if self.config.scored_images == "normalised" else pixels
        # Scores: in (0, 2]
        self.memory = Memory(ScoredSamples, self.config.memory_size, problem.generator("memory"))
        self.replacing = SavedGenerator(problem.generator("replacing"))

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
        """Store the first samples of the batch in free slots; the others may replace stored samples."""
        scores = self.score(batch)  # (1 + B,): of the whole batch, then of each sample
        room = min(self.config.memory_size - len(self.memory), len(batch))
        if room:
            shared = scores[:1].expand(room)
            first = ScoredSamples(batch.images[:room], batch.labels[:room], shared)
            self.memory.append(first, take_ids(batch.ids, slice(room)))
        if room == len(batch):
            return
        draws = torch.rand(2, len(batch) - room, dtype=torch.float64, generator=self.replacing.generator)
        # Nearly all batches end here: on permuted MNIST, 1 of 2,814 batches went on with gss_size 128, and 7
        # of 2,345 with gss_size 10. Only on the CPU is it free to know; elsewhere the device decides.
        if scores.device.type == "cpu" and scores[0] >= 1:
            return
        stored = self.memory.rows
        new = ScoredSamples(batch.images[room:], batch.labels[room:], scores[1 + room :])
        slots, won = choose_slots(stored.scores.clone(), new.scores, draws.to(new.scores))
        last = last_winner(slots, won & (scores[0] < 1))

        def settle(column: Tensor, values: Tensor) -> Tensor:
            """Final rows of the slots; a losing sample rewrites the stored row."""
            wins = (last >= 0).view(-1, *[1] * (values.dim() - 1))
            winners = values.index_select(0, last.clamp(min=0))
            return torch.where(wins, winners, column.index_select(0, slots))

        ids = self.memory.ids
        if ids is not None and batch.ids is not None:
            ids = settle(ids, batch.ids[room:])
        self.memory.overwrite(slots, ScoredSamples(*map(settle, stored, new)), ids)

    def score(self, batch: Batch) -> Tensor:
        if len(self.memory) == 0:
            return batch.images.new_full((1 + len(batch),), FIRST_SCORE, dtype=torch.float32)
        drawn = self.memory.sample(self.config.gss_size)
        inputs = self.plain_view(torch.cat([batch.images, drawn.images]))
        products = gradient_products(self.net, inputs, torch.cat([batch.labels, drawn.labels]))
        return diversity_scores(products, len(batch))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Older states have one generator for all draws.
        state_dict.setdefault(f"{prefix}replacing._extra_state", self.replacing.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *args)


def pixels(images: Tensor) -> Tensor:
    return images / 255 if images.dtype == torch.uint8 else images


def diversity_scores(products: Tensor, batch_size: int) -> Tensor:
    """(1 + B,) 1 + max cosine with the remaining gradients: of the first B's mean, then of each of them."""
    own, others = products[:batch_size, :batch_size], products[:batch_size, batch_size:]
    overlaps = torch.cat([others.mean(0, keepdim=True), others])
    squared = torch.cat([own.mean().clamp(min=0)[None], own.diagonal()])
    norms = torch.outer(squared.sqrt(), products.diagonal()[batch_size:].sqrt())
    cosines = overlaps / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    return (1 + cosines.amax(1)).clamp(LEAST_SCORE, 2)


def choose_slots(taken: Tensor, new: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """The slot for which each new sample competes, and whether it wins; `taken` gets the winners' scores.

    A slot is drawn in proportion to its score, and won with odds old : new. It loops over samples, because a
    slot that was replaced is drawn by its new score.
    """
    slots, won = [], []
    for number in range(len(new)):
        heights, score = taken.cumsum(0), new[number : number + 1]
        slot = torch.searchsorted(heights, draws[0, number] * heights[-1:], right=True)
        slot = slot.clamp(max=len(taken) - 1)
        old = taken.index_select(0, slot)
        wins = draws[1, number] < old / (old + score)
        taken.index_copy_(0, slot, torch.where(wins, score, old))
        slots.append(slot)
        won.append(wins)
    return torch.cat(slots), torch.cat(won)


def last_winner(slots: Tensor, won: Tensor) -> Tensor:
    """(N,) the last sample that won the slot of each sample, or -1."""
    numbers = torch.arange(len(slots), device=slots.device)
    return torch.where((slots[:, None] == slots) & won, numbers, -1).amax(1)
