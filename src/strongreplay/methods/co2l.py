"""Contrastive Continual Learning (Co2L).

Paper: Cha, Lee and Shin, "Co2L: Contrastive Continual Learning", 2021, https://arxiv.org/abs/2106.14413
Reference: https://github.com/chaht01/Co2L
An encoder is trained by a supervised contrastive loss, with the samples of the current classes as anchors,
and by distillation of the similarities that the previous encoder gives to the samples of a batch. After each
task a new linear head is fitted to fixed features, with class-balanced sampling. The method augments images
itself; it does not use the stream's training view.

The old net and the memory are updated when a task ends, not when the next one begins: the task's samples are
still available then. As in the reference, the old net normalises with batch statistics;
`teacher_bn="running"` makes it use its running statistics.
Differences from the reference: the head starts at zero, not at random; the memory is shared equally by
classes, not first by tasks, which differs only if tasks have different numbers of classes; images are
standardised as for all other methods; `augment.contrast` lists the differences in augmentation.
"""

from collections import Counter
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.data.augment.contrast import contrast_view
from strongreplay.errors import ConfigError
from strongreplay.memory import Memory
from strongreplay.methods.base import (
    MAIN,
    Method,
    MethodConfig,
    Phase,
    Problem,
    SavedGenerator,
    descend,
    predict_all,
    unchanged,
)
from strongreplay.methods.co2l_parts import Projector, Teacher, contrast, distil, losses
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import with_features
from strongreplay.protocol import Batch, Split, Task, Terms, View


class Co2LConfig(MethodConfig):
    memory_size: int = Field(200, ge=0, description="samples kept, shared equally by all seen classes")
    temperature: float = Field(0.5, gt=0, description="tau: divides similarities in the contrastive loss")
    kappa: float = Field(0.2, gt=0, description="temperature of the net's similarities in distillation")
    teacher_kappa: float = Field(0.01, gt=0, description="kappa*: temperature of the old net's similarities")
    distillation: float = Field(1.0, ge=0, description="weight of the distillation; 0 skips the old net")
    teacher_bn: Literal["batch", "running"] = Field(
        "batch", description="batch-norm statistics of the old net: of the batch, or its running ones"
    )
    crop_scale: float = Field(0.7, gt=0, le=1, description="smallest share of an image in a random crop")
    flip: bool = Field(False, description="random horizontal flips")
    jitter: bool = Field(False, description="random changes of brightness, contrast and colour")
    probe_view: Literal["strong", "plain"] = Field(
        "strong", description="images the head is fitted to: augmented, or plain, which is much faster"
    )
    probe_epochs: int = Field(100, ge=1, description="epochs that fit the head after each task")
    probe_lr: float = Field(1.0, gt=0, description="learning rate of these epochs")
    probe_batch_size: int = Field(256, ge=1, description="batch size of these epochs")


class Co2L(Method):
    net: Projector
    current: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: Co2LConfig | None = None) -> None:
        super().__init__()
        self.config, self.plain_view = config or Co2LConfig(), problem.test_view
        self.net = Projector(with_features(net, "co2l", problem.num_classes), problem.generator("projection"))
        self.teacher = Teacher(self.net, self.config.teacher_bn)
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        # The probe has its own generator, so that it does not influence the encoder.
        self.views, self.probing = (
            SavedGenerator(problem.generator("contrast")),
            SavedGenerator(problem.generator("probe")),
        )
        # (C,) the classes whose samples are anchors; all classes before the first task
        self.register_buffer("current", torch.ones(problem.num_classes, dtype=torch.bool))

    def begin_task(self, task: Task) -> Task:
        train = task.train
        if train.inputs.dim() != 4:
            raise ConfigError(f"co2l needs images (N, C, H, W), got {tuple(train.inputs.shape)}")
        self.current.zero_()[list(task.classes)] = True
        if len(self.memory) == 0:
            return task
        return task.with_train(train.joined(Split(*self.memory.rows, self.memory.ids)))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        config = self.config
        inputs, labels = self.view(batch.images.repeat(2, 1, 1, 1), self.views), batch.labels.repeat(2)
        vectors = self.net(inputs)
        goals = {"contrast": contrast(vectors, labels, self.current, config.temperature)}
        if self.teacher.exists and config.distillation:
            kappa, old = config.kappa / config.temperature, self.teacher(inputs)
            goals["relations"] = distil(old, kappa, config.teacher_kappa, config.distillation)
        found = losses(vectors, config.temperature, *goals.values())
        return descend(optimizer, dict(zip(goals, found, strict=True)))

    def view(self, images: Tensor, draws: SavedGenerator) -> Tensor:
        config = self.config
        return self.plain_view(
            contrast_view(images, draws.generator, config.crop_scale, config.flip, config.jitter)
        )

    def phases(self, task: Task) -> list[Phase]:
        """After the main phase, a new head is fitted to fixed features, with class-balanced sampling."""
        config, labels = self.config, task.train.labels.cpu()
        milestones = [round(part * config.probe_epochs) for part in (0.6, 0.75, 0.9)]
        probe = Phase(
            "probe",
            config.probe_epochs,
            self.fit_head,
            data=partial(self.probe_data, task.train),
            parameters=list(self.net.classifier.head.parameters()),
            optimizer=partial(torch.optim.SGD, lr=config.probe_lr, momentum=0.9),
            rate=partial(stepped_rate, config.probe_lr, milestones),
            batch_size=config.probe_batch_size,
            weights=1 / labels.bincount()[labels],
            view=unchanged,
            generator=self.probing.generator,
            begin=self.clear_head,
        )
        return [Phase(MAIN, None, self.observe), probe]

    def clear_head(self) -> None:
        for parameter in self.net.classifier.head.parameters():
            nn.init.zeros_(parameter)

    def probe_data(self, train: Split) -> Split:
        """Images, to be augmented in each epoch, or the features of plain images."""
        if self.config.probe_view == "strong":
            return train
        return Split(self.features(train.inputs, self.plain_view), train.labels.to(self.current.device))

    def fit_head(self, batch: Batch, optimizer: Optimizer) -> Terms:
        shown = batch.inputs
        if self.config.probe_view == "strong":
            shown = self.features(batch.images, lambda images: self.view(images, self.probing))
        return descend(optimizer, {"probe": cross_entropy(self.net.classifier.head(shown), batch.labels)})

    def end_task(self, task: Task) -> None:
        self.renew_memory(task)
        self.teacher.take()

    def features(self, images: Tensor, view: View) -> Tensor:
        return predict_all(self.net, images, view, self.net.classifier.features)

    def renew_memory(self, task: Task) -> None:
        """Drop random samples of old classes, and fill the free slots with samples of the task's classes."""
        labels, memory = task.train.labels.cpu(), self.memory
        new = [label for label in labels.unique().tolist() if label in task.classes]
        if len(memory):
            stored = memory.rows.labels.cpu()
            old = [label for label in stored.unique().tolist() if label not in task.classes]
            share = memory.capacity * len(old) / (len(old) + len(new))
            memory.keep(choose(stored, old, share, memory.generator))
        rows = choose(labels, new, memory.capacity - len(memory), memory.generator)
        if len(rows):
            split = task.train.take(rows).to(self.current.device)
            memory.append(LabelledSamples(split.inputs, split.labels), split.ids)

    def predict(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net.classifier(inputs)
        return logits


def stepped_rate(lr: float, milestones: list[int], epoch: int, part: float) -> float:
    """The learning rate of an epoch, divided by 5 at each milestone."""
    for milestone, times in sorted(Counter(milestones).items()):
        lr *= 0.2**times if epoch >= milestone else 1.0
    return lr


def choose(labels: Tensor, classes: list[int], total: float, generator: torch.Generator) -> Tensor:
    """Random rows, the same number of each class; a fractional number is rounded up or down at random."""
    # Systematic sampling: equally spaced bounds with one random offset, rounded down. Their differences are
    # the share rounded up or down, with the right mean, and sum to the total.
    bounds = torch.arange(len(classes) + 1, dtype=torch.float64) * total / max(len(classes), 1)
    sizes = (bounds + torch.rand((), generator=generator)).floor().long().diff().tolist()
    chosen = [torch.empty(0, dtype=torch.int64)]
    for label, size in zip(classes, sizes, strict=True):
        rows = torch.nonzero(labels == label).flatten()
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[:size]])
    return torch.cat(chosen)
