"""Rainbow Memory (RM).

Paper: Bang et al., "Rainbow Memory: Continual Learning with a Memory of Diverse Samples", 2021,
https://arxiv.org/abs/2103.17230
Reference: https://github.com/clovaai/rainbow-memory, the "offline" protocol; none of its code is used.
After each task the memory is selected again from its samples and the task's: equally many of every class,
spread over the range of uncertainty, which is how much predictions for perturbed copies of a sample differ.
From the second task on, half of each batch is replayed. All samples are augmented by AutoAugment and CutMix.
Choices: samples are selected at integer steps, as in the reference, which leaves out the most uncertain ones;
`spacing="linspace"` includes them. The loss covers the classes seen so far, as with the reference's growing
head; `logits="all"` covers all. The reference starts every task with a new head: `reset_head=True`.
Differences from the reference: AutoAugment comes before crop and flip, which are part of the stream's view,
so it does not change their black border; RandAugment has 2 operations at magnitude 9 of 30, which the
reference does not fix; one-channel images are perturbed only by geometry and inversion; if an epoch over the
memory ends within a step, the next one begins in that step, so every step replays equally many samples.
The file is long because the order of replay and the choice of the memory are used by no other method.
"""

from functools import partial
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.data.augment.policy import Perturbation, auto_augment, cutmix, perturbations
from strongreplay.memory import Memory
from strongreplay.methods.base import (
    Method,
    MethodConfig,
    Problem,
    SavedGenerator,
    descend,
    predict_all,
)
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import Classifier, seeded_init, with_features
from strongreplay.protocol import Batch, Task, Terms
from strongreplay.sampling import draw_distinct

Spacing = Literal["step", "linspace"]


class RMConfig(MethodConfig):
    memory_size: int = Field(200, ge=1, description="samples kept, shared equally by all seen classes")
    auto_augment: bool = Field(True, description="augment images by AutoAugment's CIFAR-10 policy")
    cutmix: float = Field(0.5, ge=0, le=1, description="probability of CutMix in a step")
    perturbations: Literal["rand", "vr"] = Field(
        "rand", description="perturbations for uncertainty: twelve draws of RandAugment, or a fixed set"
    )
    spacing: Spacing = Field(
        "step", description="samples selected by uncertainty: every n-th (reference), or both ends included"
    )
    logits: Literal["seen", "all"] = Field("seen", description="classes in the loss")
    reset_head: bool = Field(False, description="start each task with a new head (reference)")


class RM(Method):
    seen: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: RMConfig | None = None) -> None:
        super().__init__()
        self.config = config or RMConfig()
        self.net = net
        if self.config.reset_head:
            self.net = with_features(net, "rm with reset_head", problem.num_classes)
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        self.passes = Passes(problem.generator("passes"))
        self.augmenting = SavedGenerator(problem.generator("augmentation"))
        self.mixing = SavedGenerator(problem.generator("cutmix"))
        self.perturbing = SavedGenerator(problem.generator("perturbations"))
        self.heads = SavedGenerator(problem.generator("heads"))
        self.register_buffer("seen", torch.zeros(problem.num_classes, dtype=torch.bool))  # (C,)

    def stream_batch_size(self, batch_size: int) -> int:
        """The whole batch while the memory is empty, then the larger half; the rest is replayed."""
        self.passes.count = batch_size // 2
        return batch_size - self.passes.count if len(self.memory) else batch_size

    def begin_task(self, task: Task) -> Task:
        if self.config.reset_head and self.seen.any():
            self.renew_head()
        self.seen[list(task.classes)] = True
        return task

    def renew_head(self) -> None:
        """Re-initialise the head in place, so that the optimiser keeps its parameters."""
        head = cast(Classifier, self.net).head
        with seeded_init(self.heads.generator):
            fresh = nn.Linear(head.in_features, head.out_features, head.bias is not None)
        head.load_state_dict(fresh.state_dict())

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        images, labels, name = batch.images, batch.labels, "current"
        if len(self.memory):
            replayed = self.memory.take(self.passes.take(len(self.memory), len(batch)))
            images, labels = torch.cat([images, replayed.images]), torch.cat([labels, replayed.labels])
            name = "mixed"
        return descend(optimizer, {name: self.loss(self.show(batch, images), labels)})

    def show(self, batch: Batch, images: Tensor) -> Tensor:
        """The inputs of stream and replayed images."""
        if self.config.auto_augment:
            return self.view(auto_augment(images, self.augmenting.generator))
        if len(images) == len(batch):
            return batch.inputs
        return torch.cat([batch.inputs, self.view(images[len(batch) :])])

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        mixes = torch.rand((), generator=self.mixing.generator) < self.config.cutmix  # on the host
        if not mixes:
            return cross_entropy(self.compete(self.net(inputs)), labels)
        inputs, partners, share = cutmix(inputs, self.mixing.generator)
        logits = self.compete(self.net(inputs))
        return share * cross_entropy(logits, labels) + (1 - share) * cross_entropy(logits, labels[partners])

    def compete(self, logits: Tensor) -> Tensor:
        """Mask the logits of classes not seen yet, unless no task has begun."""
        if self.config.logits == "all":
            return logits
        return logits.masked_fill(~self.seen & self.seen.any(), -torch.inf)

    def end_task(self, task: Task) -> None:
        """Select the memory again, from its samples and the task's, without augmentation."""
        self.seen[list(task.classes)] = True
        memory, train, num_old = self.memory, task.train, len(self.memory)
        old = [memory.rows.labels.cpu()] if num_old else []
        labels = torch.cat([*old, train.labels.cpu()])
        doubts = torch.zeros(len(labels))  # the first task's samples are selected at random
        if num_old and len(labels) > memory.capacity:
            doubts = torch.cat([self.doubt(memory.rows.images), self.doubt(train.inputs)]).cpu()
        quota = memory.capacity // int(self.seen.sum())
        chosen = choose(labels, doubts, quota, memory.capacity, memory.generator, self.config.spacing)
        if num_old:
            memory.keep(chosen[chosen < num_old])
        new = train.take(chosen[chosen >= num_old] - num_old).to(self.seen.device)
        if len(new):
            memory.append(LabelledSamples(new.inputs, new.labels), new.ids)
        self.passes.restart()

    def doubt(self, images: Tensor) -> Tensor:
        """(N,) uncertainty: how much the predictions for perturbed copies of each image differ."""
        changes = perturbations(self.config.perturbations, images.shape[1])
        votes = [predict_all(self.net, images, partial(self.perturbed, by=by), self.vote) for by in changes]
        return disagreement(torch.stack(votes))

    def perturbed(self, images: Tensor, by: Perturbation) -> Tensor:
        return self.plain_view(by(images, self.perturbing.generator))

    def vote(self, inputs: Tensor) -> Tensor:
        return self.compete(self.net(inputs)).argmax(1)


class Passes(nn.Module):
    """Row numbers of a memory, epoch after epoch, each in a new random order."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator
        self.count: int | None = None  # rows per step; none: as many as the batch has
        self.restart()

    def restart(self) -> None:
        self.left = torch.empty(0, dtype=torch.int64)  # remaining rows of this epoch, on the CPU

    def take(self, population: int, batch_size: int) -> Tensor:
        count = batch_size if self.count is None else self.count
        while len(self.left) < count:
            self.left = torch.cat([self.left, torch.randperm(population, generator=self.generator)])
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def get_extra_state(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "count": self.count, "left": self.left.clone()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.count, self.left = state["count"], state["left"].cpu()


def disagreement(votes: Tensor) -> Tensor:
    """(N,) the share of (A, N) votes that differ from the most frequent one."""
    agreeing = (votes[:, None] == votes).sum(1)  # (A, N) number of equal votes, itself included
    return 1 - agreeing.amax(0) / len(votes)


def choose(
    labels: Tensor, doubts: Tensor, quota: int, capacity: int, generator: torch.Generator, spacing: Spacing
) -> Tensor:
    """`capacity` sorted rows, or all if fewer: of each class a quota spread over its uncertainty."""
    if len(labels) <= capacity:
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=generator)
    ranked = order[doubts[order].argsort(stable=True)]  # ties, which are frequent, are in random order
    free = torch.ones(len(labels), dtype=torch.bool)
    for label in labels.unique():
        rows = ranked[labels[ranked] == label]
        free[rows[positions(len(rows), quota, spacing)]] = False
    rest = torch.nonzero(free).flatten()
    missing = capacity - (len(labels) - len(rest))
    free[rest[draw_distinct(len(rest), missing, generator)]] = False
    return torch.nonzero(~free).flatten()


def positions(count: int, quota: int, spacing: Spacing) -> Tensor:
    """`quota` of `count` positions: every n-th from the first, or evenly from the first to the last."""
    if count <= quota:
        return torch.arange(count)
    if spacing == "step":
        return torch.arange(quota) * (count // max(quota, 1))
    return torch.arange(quota) * (count - 1) // max(quota - 1, 1)
