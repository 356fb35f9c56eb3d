"""Global Distillation (GD).

Paper: Lee et al., "Overcoming Catastrophic Forgetting with Unlabeled Data in the Wild", 2019,
https://arxiv.org/abs/1903.12648
Half of each phase's data are unlabelled images from elsewhere (`data.auxiliary`), the rest task and random
exemplars. From the second task on there are three phases. The teacher, a copy of the net, learns the new
classes alone, and to be undecided about all other images. The main phase trains the net on labels, on the
old net for old classes, on the teacher for new ones, and for unlabelled images on both joined. Then the head
alone is trained, with weights that balance the classes.
Differences from the reference (the authors' code): the head has a row for every class from the start; losses
cover those of seen classes, and rows of later ones only decay. The last phase holds batch-norm statistics.
By our reading, an image that is among the best of several old classes is taken once, a random one beside it.
"""

from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.auxiliary import choose_rows, needed_images, unlabelled
from strongreplay.methods.base import (
    MAIN,
    Method,
    MethodConfig,
    OldNet,
    Phase,
    Problem,
    SavedGenerator,
    check_one_a_class,
    descend,
    evaluation_mode,
    predict_all,
)
from strongreplay.methods.distillation import divergence, only, soften
from strongreplay.methods.exemplars import draw_exemplars, join_exemplars
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Split, Task, Terms


class GDConfig(MethodConfig):
    memory_size: int = Field(200, ge=1, description="exemplars kept, shared equally by all seen classes")
    temperature: float = Field(2.0, gt=0, description="temperature of the distillation from each teacher")
    confidence: float = Field(1.0, ge=0, description="weight of the teacher's loss on images of no new class")
    auxiliary_size: int | None = Field(None, ge=0, description="auxiliary images; none: as many as others")
    likely: float = Field(0.3, ge=0, le=1, description="part of them that the old net finds most likely")
    teacher_epochs: int | None = Field(
        None, ge=1, description="epochs of the teacher and of the first task; none: train.epochs"
    )
    teacher_lr: float = Field(0.1, gt=0, description="learning rate of these epochs, if their number is set")
    teacher_milestones: tuple[int, ...] = Field((), description="epochs after which it falls to a tenth")
    head_epochs: int = Field(5, ge=0, description="epochs that train the head alone, with balanced classes")
    head_lr: float = Field(0.01, gt=0, description="learning rate of these epochs")
    head_milestones: tuple[int, ...] = Field((), description="epochs after which it falls to a tenth")


class GD(Method):
    resized_buffers = ("chosen",)
    net: Classifier
    old: Tensor
    new: Tensor
    chosen: Tensor
    weights: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: GDConfig | None = None) -> None:
        super().__init__()
        self.config, num_classes = config or GDConfig(), problem.num_classes
        check_one_a_class("gd", self.config.memory_size, problem)
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.net = with_features(net, "gd", num_classes)
        self.images = unlabelled(needed_images("gd", problem))
        self.old_net, self.teacher = OldNet(self.net), OldNet(self.net)
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        self.draws = SavedGenerator(problem.generator("chosen images"))
        self.register_buffer("old", torch.zeros(num_classes, dtype=torch.bool))  # classes of finished tasks
        self.register_buffer("new", torch.ones(num_classes, dtype=torch.bool))  # of this task; first all
        self.register_buffer("chosen", torch.empty(0, dtype=torch.int64))  # rows of the auxiliary images
        # Of samples by class, in the loss on labels and of both teachers; label -1 is the last column
        self.register_buffer("weights", torch.ones(3, num_classes + 1))

    def begin_task(self, task: Task) -> Task:
        self.new.zero_()[list(task.classes)] = True
        self.new &= ~self.old
        task = join_exemplars(task, self.memory)
        if len(self.memory):
            counts = task.train.labels.cpu().bincount(minlength=len(self.old))
            for row, classes in zip(self.weights, (self.old | self.new, self.old, self.new), strict=True):
                row[:-1] = class_weights(counts, classes.cpu())
            self.old_net.take()
            self.teacher.take()
        return task

    def phases(self, task: Task) -> list[Phase]:
        """The first task trains as a teacher does; later ones have a teacher, then the net, then the head."""
        config, phase = self.config, partial(Phase, data=partial(self.mixed, task.train))
        rate = partial(falling_rate, config.teacher_lr, config.teacher_milestones)
        alone = partial(phase, epochs=config.teacher_epochs, rate=rate if config.teacher_epochs else None)
        choose = partial(self.choose_images, len(task.train))
        if not self.old_net.exists:
            return [alone(MAIN, observe=self.observe, begin=choose)]
        rate = partial(falling_rate, config.head_lr, config.head_milestones)
        head = partial(phase, parameters=lambda: list(self.net.head.parameters()), rate=rate)
        return [
            alone("teacher", observe=self.teach, view=self.view, begin=choose),
            phase(MAIN, None, self.observe, begin=self.begin_main),
            head("head", config.head_epochs, self.balance, view=self.view),
        ]

    def choose_images(self, num_samples: int) -> None:
        """Auxiliary images: the most likely ones of each old class by the old net, the rest at random."""
        size, likely = self.config.auxiliary_size, torch.empty(len(self.images), 0)
        if self.old_net.exists and size != 0:
            likely = predict_all(self.old_net, self.images.inputs, self.plain_view)[:, self.old].cpu()
        size = num_samples if size is None else size
        rows = choose_rows(likely, size, self.config.likely, self.draws.generator)
        self.chosen = rows.to(self.chosen.device)

    def mixed(self, train: Split) -> Split:
        return train.joined(self.images.take(self.chosen.cpu())) if len(self.chosen) else train

    def teach(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """Learn the new classes; be undecided between them about everything else."""
        logits = self.net(batch.inputs) + only(self.new)
        known = (batch.labels >= 0) & self.new[batch.labels]
        loss = cross_entropy(logits, batch.labels.where(known, -1), ignore_index=-1, reduction="sum")
        terms = {"current": loss / known.sum().clamp(min=1)}
        if self.config.confidence:
            terms["confidence"] = self.config.confidence * decision(logits, self.new, ~known)
        return descend(optimizer, terms)

    def begin_main(self) -> None:
        """The net has become the teacher; it starts again as the old net."""
        assert self.old_net.copy is not None
        self.teacher.take()
        self.net.load_state_dict(self.old_net.copy.state_dict())

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        if not self.old_net.exists:
            return self.teach(batch, optimizer)
        return self.distil(self.net(batch.inputs), batch, optimizer, torch.ones_like(self.weights))

    def balance(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """A step of the head alone."""
        with torch.no_grad(), evaluation_mode(self.net):
            features = self.net.features(batch.inputs)
        return self.distil(self.net.head(features), batch, optimizer, self.weights)

    def distil(self, logits: Tensor, batch: Batch, optimizer: Optimizer, weights: Tensor) -> Terms:
        of_label, of_old, of_new = weights[:, batch.labels]
        seen, size, temperature = self.old | self.new, len(batch), self.config.temperature
        only_old, only_new, only_seen = map(only, (self.old, self.new, seen))
        old, new = self.old_net(batch.inputs), self.teacher(batch.inputs)
        losses = cross_entropy(logits + only_seen, batch.labels, ignore_index=-1, reduction="none")
        terms = {"current": (losses * of_label).sum() / size}
        if len(self.chosen):
            wanted = joint(soften(old, only_old, 1), soften(new, only_new, 1), self.old.sum(), self.new.sum())
            terms["auxiliary"] = (divergence(logits, wanted, only_seen, 1) * (batch.labels < 0)).sum() / size
        for name, answers, mask, factor in (("old", old, only_old, of_old), ("new", new, only_new, of_new)):
            apart = divergence(logits, soften(answers, mask, temperature), mask, temperature)
            terms[name] = temperature**2 * (apart * factor).mean() * ((mask == 0).sum() / seen.sum())
        return descend(optimizer, terms)

    def end_task(self, task: Task) -> None:
        self.old[list(task.classes)] = True
        draw_exemplars(self.memory, task, self.draws.generator, self.old.device)
        self.old_net.copy = self.teacher.copy = None
        self.chosen = self.chosen[:0]


def joint(old: Tensor, new: Tensor, num_old: Tensor, num_new: Tensor) -> Tensor:
    """Both teachers' probabilities as one: the most likely old class keeps its own, the rest is shared."""
    highest, places = old.max(1, keepdim=True)
    others = (num_old - 1) * old + num_new * (1 - highest) * new
    return (others / (num_old + num_new - 1)).scatter(1, places, highest)


def decision(logits: Tensor, classes: Tensor, samples: Tensor) -> Tensor:
    """How far outputs are from uniform over the classes, mean over the given samples; 0 if there are none."""
    count = classes.sum().clamp(min=1)
    apart = -(log_softmax(logits, 1) * classes).sum(1) / count - count.log()
    return (apart * samples).sum() / samples.sum().clamp(min=1)


def class_weights(counts: Tensor, classes: Tensor) -> Tensor:
    """total / (count * number of classes) for the given classes; 1 for others and where there is none."""
    total, number = counts[classes].sum(), classes.sum()
    return torch.where(classes & (counts > 0), total / (counts.clamp(min=1) * number), 1.0)


def falling_rate(lr: float, milestones: tuple[int, ...], epoch: int, part: float) -> float:
    return lr * 0.1 ** sum(epoch >= milestone for milestone in milestones)
