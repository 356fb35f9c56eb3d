"""Rethinking Experience Replay: a Bag of Tricks (ERT).

Paper: Buzzega et al., "Rethinking Experience Replay: a Bag of Tricks for Continual Learning", 2020,
https://arxiv.org/abs/2010.05595
Reference: https://github.com/hastings24/rethinking_er
ER with five tricks, each with a switch: independent buffer augmentation (`iba`), bias control (`bic`),
exponential learning-rate decay (`elrd`), balanced (`brs`) and loss-aware (`lars`) reservoir sampling. With
`bic`, `brs` and `lars` off and `elrd` 1 it is ER.
Differences from the reference: reservoir sampling (algorithm R) admits a sample with probability M / (n + 1),
not M / n; class counts are exact; samples of equal score are equally likely to be replaced. The scores that
choose the replaced sample are merged as in the code, where the loss has less weight than in the paper.
"""

from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss
from torch.optim import Optimizer

from strongreplay.memory import ChoosyMemory, take_ids
from strongreplay.methods.base import (
    MAIN,
    Method,
    Phase,
    Problem,
    ReplayConfig,
    descend,
    predict_all,
    replay_count,
    unchanged,
)
from strongreplay.methods.samples import ScoredSamples
from strongreplay.protocol import Batch, Split, Task, Terms
from strongreplay.sampling import draw, draw_distinct


class ERTConfig(ReplayConfig):
    iba: bool = Field(True, description="augment replayed images; false: replay them plain")
    bic: bool = Field(True, description="correct the logits of the last finished task")
    elrd: float = Field(1.0, gt=0, le=1, description="learning rate decay per sample seen; 1: no decay")
    brs: bool = Field(True, description="replace samples of the largest classes first")
    lars: bool = Field(True, description="replace samples of low loss first")
    bic_epochs: int = Field(50, ge=0, description="epochs over the memory that fit the correction")
    bic_lr: float = Field(0.5, gt=0, description="learning rate of these epochs")
    bic_batch_size: int = Field(32, ge=1, description="batch size of these epochs")


class ERT(Method):
    corrected: Tensor
    correction: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: ERTConfig | None = None) -> None:
        super().__init__()
        self.net, self.config = net, config or ERTConfig()
        self.view = problem.train_view if self.config.iba else problem.test_view
        self.plain_view = problem.test_view
        # Scores: minus the loss in the last step that used the sample
        self.memory = ChoosyMemory(ScoredSamples, self.config.memory_size, problem.generator("memory"))
        self.register_buffer("corrected", torch.zeros(problem.num_classes, dtype=torch.bool))  # (C,)
        self.register_buffer("correction", torch.zeros(2))  # scale and offset of the corrected logits

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        self.decay(optimizer)
        inputs, labels, name = batch.inputs, batch.labels, "current"
        slots = draw_distinct(
            len(self.memory), min(replay_count(self.config, batch), len(self.memory)), self.memory.generator
        )
        if len(slots):
            slots, stored = slots.to(labels.device), self.memory.rows
            inputs = torch.cat([inputs, self.view(stored.images.index_select(0, slots))])
            labels, name = torch.cat([labels, stored.labels.index_select(0, slots)]), "mixed"
        log_probabilities = log_softmax(self.net(inputs), 1)
        terms = descend(optimizer, {name: nll_loss(log_probabilities, labels)})
        if self.config.lars:
            scores = log_probabilities.detach().gather(1, labels[:, None]).view(-1)
        else:
            scores = log_probabilities.new_zeros(len(labels))
        if len(slots) and self.config.lars:
            stored.scores.index_copy_(0, slots, scores[len(batch) :])
        self.remember(ScoredSamples(batch.images, batch.labels, scores[: len(batch)]), batch.ids)
        return terms

    def decay(self, optimizer: Optimizer) -> None:
        """Decay the learning rate with every sample of the stream, over all tasks; overrides a schedule."""
        if self.config.elrd < 1:
            for group in optimizer.param_groups:
                first = group.setdefault("initial_lr", group["lr"])  # PyTorch's key; saved with the optimiser
                group["lr"] = first * self.config.elrd**self.memory.num_seen

    def remember(self, new: ScoredSamples, ids: Tensor | None = None) -> None:
        memory, config = self.memory, self.config
        if not (config.brs or config.lars):
            memory.add(new, ids)
            return
        if free := memory.capacity - len(memory):
            memory.append(ScoredSamples(*(column[:free] for column in new)), take_ids(ids, slice(free)))
        # One by one: each stored sample changes the weights for the next. Slots stay on the device: no sync.
        for place in memory.entrants(len(new.labels)):
            slot = self.choose_victim(memory.rows, draw(memory.generator))
            entrant = slice(place, place + 1)
            row = ScoredSamples(*(column[entrant] for column in new))
            memory.overwrite(slot, row, take_ids(ids, entrant))

    @torch.inference_mode()  # many small operations, faster without autograd
    def choose_victim(self, rows: ScoredSamples, drawn: float) -> Tensor:
        """(1,) the slot to overwrite, drawn by `victim_weights` with a uniform number in [0, 1]."""
        bounds = victim_weights(
            rows.labels, rows.scores, len(self.corrected), self.config.brs, self.config.lars
        ).cumsum_(0)
        return torch.searchsorted(bounds, drawn * bounds[-1:])

    def phases(self, task: Task) -> list[Phase]:
        """After the main phase, `bic` fits scale and offset of this task's logits on the memory."""
        config, main = self.config, Phase(MAIN, None, self.observe)
        if not config.bic:
            return [main]
        bias = Phase(
            "bias correction",
            config.bic_epochs,
            self.fit_correction,
            data=self.remembered_logits,
            parameters=[self.correction],  # the next task's fit starts from it
            optimizer=partial(torch.optim.SGD, lr=config.bic_lr),
            batch_size=config.bic_batch_size,
            view=unchanged,
            generator=self.memory.generator,
            begin=partial(self.correct_classes, task.classes),
        )
        return [main, bias]

    def correct_classes(self, classes: tuple[int, ...]) -> None:
        if len(self.memory):
            self.corrected.zero_()[list(classes)] = True

    def remembered_logits(self) -> Split:
        """Logits of the memory, computed once: the net does not change during the fit."""
        if len(self.memory) == 0:
            return Split(torch.empty(0, len(self.corrected)), torch.empty(0, dtype=torch.int64))
        rows = self.memory.rows
        return Split(predict_all(self.net, rows.images, self.plain_view), rows.labels)

    def fit_correction(self, batch: Batch, optimizer: Optimizer) -> Terms:
        logits = self.correct(batch.inputs, self.correction)
        return descend(optimizer, {"bias": cross_entropy(logits, batch.labels)})

    def correct(self, logits: Tensor, correction: Tensor) -> Tensor:
        scale, offset = correction
        return torch.where(self.corrected, scale * logits + offset, logits)

    def predict(self, inputs: Tensor) -> Tensor:
        return self.correct(super().predict(inputs), self.correction)


def victim_weights(labels: Tensor, scores: Tensor, num_classes: int, brs: bool, lars: bool) -> Tensor:
    """(M,) unnormalised probabilities to be replaced; higher for large classes and low losses."""
    merged, ones = scores, torch.ones_like(scores)
    if brs:
        merged = ones.new_zeros(num_classes).scatter_add_(0, labels, ones)[labels]  # size of the class
    if brs and lars:  # each divided by its mean; scores are <= 0
        scale = (scores.mean() * -merged.mean()).clamp_(min=torch.finfo(scores.dtype).tiny)
        merged = torch.addcmul(scores, merged, scale)
    # The smallest float is added so that the weights are not all zero if all scores are equal.
    return (merged - merged.amin()).add_(torch.finfo(merged.dtype).tiny)
