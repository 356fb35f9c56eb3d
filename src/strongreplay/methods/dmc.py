"""Deep Model Consolidation (DMC).

Paper: Zhang et al., "Class-incremental Learning via Deep Model Consolidation", 2020,
https://arxiv.org/abs/1903.07864
From the second task on, a fresh net, the specialist, learns the task alone. Then another fresh net, the
student, learns to answer as the old net does for old classes and as the specialist does for new ones, on
unlabelled images from elsewhere (`data.auxiliary`). No sample is kept.
The logits of each teacher are centred for each image, which removes what a softmax ignores
(`centre="batch"`: over the batch, as in a library's code, so one image alone would get zeros).
By our reading, heads of fresh nets start at zero, so that the numbers of classes make no difference.
"""

from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.methods.auxiliary import needed_images, unlabelled
from strongreplay.methods.base import (
    MAIN,
    Method,
    MethodConfig,
    OldNet,
    Phase,
    Problem,
    SavedGenerator,
    descend,
)
from strongreplay.methods.distillation import only
from strongreplay.methods.expansion import reset_module
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Split, Task, Terms
from strongreplay.sampling import draw_distinct


class DMCConfig(MethodConfig):
    centre: Literal["sample", "batch"] = Field(
        "sample", description="what the teachers' logits are centred over: classes of a sample, or the batch"
    )
    auxiliary_size: int | None = Field(
        None, ge=1, description="auxiliary images of a task, drawn at random; none: all"
    )
    student_epochs: int | None = Field(None, ge=1, description="epochs of the student; none: train.epochs")


class DMC(Method):
    resized_buffers = ("chosen",)
    net: Classifier
    old: Tensor
    new: Tensor
    only_new: Tensor
    chosen: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: DMCConfig | None = None) -> None:
        super().__init__()
        self.config, self.view = config or DMCConfig(), problem.train_view
        self.net = with_features(net, "dmc", problem.num_classes)
        self.images = unlabelled(needed_images("dmc", problem))
        self.old_net, self.specialist = OldNet(self.net), OldNet(self.net)
        self.draws = SavedGenerator(problem.generator("fresh nets"))
        none = torch.zeros(problem.num_classes, dtype=torch.bool)
        self.register_buffer("old", none)  # (C,) classes of finished tasks
        self.register_buffer("new", ~none)  # (C,) classes of this task alone; all before the first one
        self.register_buffer("only_new", only(~none))  # (C,) a mask, added to logits
        self.register_buffer("chosen", torch.empty(0, dtype=torch.int64))  # rows of the auxiliary images

    def begin_task(self, task: Task) -> Task:
        self.new.zero_()[list(task.classes)] = True
        self.new &= ~self.old
        self.only_new.copy_(only(self.new if self.new.any() else ~self.new))
        if self.old.any():
            self.old_net.take()
            self.specialist.copy = None
            self.start_fresh()
        return task

    def phases(self, task: Task) -> list[Phase]:
        """The main phase trains the specialist; from the second task on, then the student."""
        found = [Phase(MAIN, None, self.observe)]
        if self.old.any():
            student = partial(Phase, "student", self.config.student_epochs, self.consolidate)
            found.append(student(data=self.drawn_images, view=self.view, begin=self.begin_student))
        return found

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        logits = self.net(batch.inputs) + self.only_new
        return descend(optimizer, {"current": cross_entropy(logits, batch.labels)})

    def start_fresh(self) -> None:
        """Fresh weights, whatever the net was; the head starts at zero, so classes are alike."""
        reset_module(self.net, self.draws.generator)
        for parameter in self.net.head.parameters():
            nn.init.zeros_(parameter)

    def begin_student(self) -> None:
        """The specialist is ready; the student starts fresh, not from the old net."""
        self.specialist.take()
        self.start_fresh()
        total = len(self.images)
        count = min(total, self.config.auxiliary_size or total)
        self.chosen = draw_distinct(total, count, self.draws.generator).to(self.chosen.device)

    def drawn_images(self) -> Split:
        return self.images.take(self.chosen.to(self.images.labels.device))

    def consolidate(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """A step of the student; labels are not read."""
        old, new = self.old_net(batch.inputs), self.specialist(batch.inputs)
        if self.config.centre == "batch":
            target = torch.where(self.old, old - old.mean(0), new - new.mean(0))
        else:
            target = torch.where(self.old, centred(old, self.old), centred(new, self.new))
        loss = distance(self.net(batch.inputs), target, self.old | self.new)
        return descend(optimizer, {"student": loss})

    def end_task(self, task: Task) -> None:
        self.old[list(task.classes)] = True
        self.old_net.copy = self.specialist.copy = None  # the student alone is kept


def centred(logits: Tensor, among: Tensor) -> Tensor:
    """Logits minus their mean over the given classes, for each sample."""
    return logits - ((logits * among).sum(1, keepdim=True) / among.sum())


def distance(logits: Tensor, target: Tensor, among: Tensor) -> Tensor:
    """Squared distance, mean over samples and the given classes."""
    return ((logits - target).square() * among).sum() / (len(logits) * among.sum())
