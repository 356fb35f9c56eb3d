"""Contrastive Continual Learning (Co2L).

Paper: Cha, Lee and Shin, "Co2L: Contrastive Continual Learning", 2021, https://arxiv.org/abs/2106.14413
Reference: https://github.com/chaht01/Co2L
An encoder learns by a supervised contrastive loss whose anchors are samples of the current classes, and keeps
the relations that the previous encoder saw between the samples of a batch. After each task a linear head is
fitted anew to fixed features, every class drawn equally often. Views are the method's own, not the stream's.

Old net and memory are renewed when a task ends, not when the next begins: nothing changes in between, and the
samples are still there. As in the reference the old net normalises with the statistics of the batch it sees;
`teacher_bn="running"` gives it its own.
Differences from the reference: the head starts from zero, not at random; memory is shared by classes, not
first by tasks, which differs only where tasks have unequally many; images are standardised as for all other
methods; `augment.contrast` says what differs in the views.
"""

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy, normalize
from torch.optim import Optimizer
from torch.optim.lr_scheduler import MultiStepLR

from strongreplay.augment.contrast import contrast_view
from strongreplay.errors import ConfigError
from strongreplay.memory import Memory
from strongreplay.methods.base import (
    Draws,
    Method,
    MethodConfig,
    OldNet,
    Problem,
    answer_all,
    descend,
    with_features,
)
from strongreplay.nets import Classifier, seeded_init
from strongreplay.types import Batch, Split, Task, Terms, View

BASE_TEMPERATURE = 0.07
NUM_PROJECTED = 128
NO_PART = -1e30  # finite, so that nothing times its logarithm is nothing


class Exemplar(NamedTuple):
    images: Tensor
    labels: Tensor


class Co2LConfig(MethodConfig):
    memory_size: int = Field(200, ge=0, description="samples kept, shared equally by all seen classes")
    temperature: float = Field(0.5, gt=0, description="tau: divides similarities in the contrastive loss")
    kappa: float = Field(0.2, gt=0, description="divides similarities of the net that keeps them")
    teacher_kappa: float = Field(0.01, gt=0, description="kappa*: divides similarities of the old net")
    distillation: float = Field(1.0, ge=0, description="weight of the old relations; 0 skips the old net")
    teacher_bn: Literal["batch", "running"] = Field(
        "batch", description="statistics the old net normalises with; running: its own"
    )
    crop_scale: float = Field(0.7, gt=0, le=1, description="smallest share of an image that a view shows")
    flip: bool = Field(False, description="views are mirrored at random")
    jitter: bool = Field(False, description="views change in brightness, contrast and colour at random")
    probe_view: Literal["strong", "plain"] = Field(
        "strong", description="images the head is fitted to; plain: not augmented, and far quicker"
    )
    probe_epochs: int = Field(100, ge=1, description="passes that fit the head after each task")
    probe_lr: float = Field(1.0, gt=0, description="learning rate of these passes")
    probe_batch_size: int = Field(256, ge=1, description="samples a step of these passes")


class Projector(nn.Module):
    """A unit vector for every image. The classifier's head has no part in it: it is the probe's alone."""

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
    """The previous net, with or without running statistics; batch norm that has none uses the batch's."""

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


class Co2L(Method):
    net: Projector
    current: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: Co2LConfig | None = None) -> None:
        super().__init__()
        self.config, self.plain_view = config or Co2LConfig(), problem.test_view
        self.net = Projector(with_features(net, "co2l"), problem.generator("projection"))
        self.teacher = Teacher(self.net, self.config.teacher_bn)
        self.memory = Memory(Exemplar, self.config.memory_size, problem.generator("memory"))
        # The probe has draws of its own, so that it makes no difference to the encoder.
        self.views, self.probing = Draws(problem.generator("contrast")), Draws(problem.generator("probe"))
        # (C,) the classes whose samples are anchors; all while no task has begun
        self.register_buffer("current", torch.ones(problem.num_classes, dtype=torch.bool))

    def begin_task(self, task: Task) -> Task:
        train = task.train
        if train.inputs.dim() != 4:
            raise ConfigError(f"co2l needs images (N, C, H, W), got {tuple(train.inputs.shape)}")
        self.current.zero_()[list(task.classes)] = True
        if len(self.memory) == 0:
            return task
        images, labels = (column.to(train.inputs.device) for column in self.memory.rows)
        return task.with_train(Split(torch.cat([train.inputs, images]), torch.cat([train.labels, labels])))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        config = self.config
        inputs, labels = self.view(batch.images.repeat(2, 1, 1, 1), self.views), batch.labels.repeat(2)
        vectors = self.net(inputs)
        relations = similarities(vectors, config.temperature)
        terms = {"contrast": contrast(vectors, relations, labels, self.current, config.temperature)}
        if self.teacher.exists and config.distillation:
            kappa, old = config.kappa / config.temperature, self.teacher(inputs)
            loss = distil(relations, old, kappa, config.teacher_kappa)
            terms["relations"] = config.distillation * loss
        return descend(optimizer, terms)

    def view(self, images: Tensor, draws: Draws) -> Tensor:
        config = self.config
        return self.plain_view(
            contrast_view(images, draws.generator, config.crop_scale, config.flip, config.jitter)
        )

    def end_task(self, task: Task) -> None:
        self.probe(task.train.to(self.current.device))
        self.renew_memory(task)
        self.teacher.take()

    def probe(self, train: Split) -> None:
        """Fit the head anew to fixed features, every class drawn equally often."""
        config, head, generator = self.config, self.net.classifier.head, self.probing.generator
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        optimizer = torch.optim.SGD(head.parameters(), lr=config.probe_lr, momentum=0.9)
        schedule = MultiStepLR(
            optimizer, [round(part * config.probe_epochs) for part in (0.6, 0.75, 0.9)], 0.2
        )
        labels = train.labels.cpu()
        odds = 1 / labels.bincount()[labels]
        plain = self.features(train.inputs, self.plain_view) if config.probe_view == "plain" else None
        for _ in range(config.probe_epochs):
            order = odds.multinomial(len(odds), replacement=True, generator=generator)
            for rows in order.to(train.labels.device).split(config.probe_batch_size):
                if plain is None:
                    shown = self.features(train.inputs[rows], lambda images: self.view(images, self.probing))
                else:
                    shown = plain[rows]
                descend(optimizer, {"probe": cross_entropy(head(shown), train.labels[rows])})
            schedule.step()
        optimizer.zero_grad()  # a head without gradient is passed over when the encoder is trained

    def features(self, images: Tensor, view: View) -> Tensor:
        return answer_all(self.net, images, view, self.net.classifier.features)

    def renew_memory(self, task: Task) -> None:
        """Old classes give up room at random, and the task's own classes fill it."""
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
            memory.append(Exemplar(split.inputs, split.labels))

    def predict(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net.classifier(inputs)
        return logits


class Similarities(Function):
    """(n, n) products of every vector with all others, over a temperature; with itself: no part of a softmax.

    The gradient is (G + G')V, one product of matrices where autograd would make two.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, temperature: float) -> Tensor:
        scaled = vectors / temperature
        ctx.save_for_backward(scaled)
        return (scaled @ vectors.t()).fill_diagonal_(NO_PART)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (scaled,) = ctx.saved_tensors
        # A copy goes through a transposed matrix in blocks, a sum from end to end.
        both: Tensor = gradient.t().contiguous().add_(gradient).fill_diagonal_(0)
        moved: Tensor = both @ scaled
        return moved, None


def similarities(vectors: Tensor, temperature: float = 1) -> Tensor:
    relations: Tensor = Similarities.apply(vectors, temperature)  # type: ignore[no-untyped-call]
    return relations


class LogSumExp(Function):
    """(n,) logarithm of the summed exponentials of each row, in few passes.

    The largest part of a row's softmax is one over the sum, measured from the largest number.
    """

    @staticmethod
    def forward(ctx: Any, relations: Tensor) -> Tensor:
        parts = relations.softmax(1)
        ctx.parts = parts
        return relations.amax(1) - parts.amax(1).log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        parts: Tensor = ctx.parts
        del ctx.parts  # they become the gradient: a matrix of this size costs more to get than to fill
        return parts.mul_(gradient[:, None])


class CrossEntropy(Function):
    """Mean over rows, between what is wanted and a softmax over a temperature."""

    @staticmethod
    def forward(ctx: Any, relations: Tensor, wanted: Tensor, temperature: float) -> Tensor:
        parts, share = (relations / temperature).softmax(1), 1 / (temperature * len(wanted))
        sums = relations.amax(1) / temperature - parts.amax(1).log()
        ctx.parts, ctx.share = parts.sub_(wanted), share
        return sums.mean() - share * torch.dot(relations.view(-1), wanted.view(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        parts: Tensor = ctx.parts
        del ctx.parts
        return parts.mul_(gradient * ctx.share), None, None


def contrast(
    vectors: Tensor, relations: Tensor, labels: Tensor, current: Tensor, temperature: float
) -> Tensor:
    """Supervised contrastive loss: an anchor wants all others of its label near, each as much as the next.

    Relations are those over the same temperature. Anchors are the samples of current classes; the mean is
    over all vectors. Every one has another of its label: its image's other view.
    """
    # The mean product with others of a label is the product with their mean: no (n, n) numbers are needed.
    sums = vectors.new_zeros(len(current), vectors.shape[1]).index_add(0, labels, vectors)
    counts = vectors.new_zeros(len(current)).index_add(0, labels, torch.ones_like(vectors[:, 0]))
    others = sums.index_select(0, labels) - vectors
    near = (others * vectors).sum(1) / (counts[labels] - 1)
    sizes: Tensor = LogSumExp.apply(relations)  # type: ignore[no-untyped-call]
    losses = sizes - near / temperature
    return temperature / BASE_TEMPERATURE * (current[labels] * losses).mean()


def distil(relations: Tensor, old: Tensor, kappa: float, teacher_kappa: float) -> Tensor:
    """Instance-wise relation distillation: each vector wants others as near as the old net put its own.

    Kappa comes on top of the temperature that the relations were made with.
    """
    wanted = similarities(old, teacher_kappa).softmax(1)
    loss: Tensor = CrossEntropy.apply(relations, wanted, kappa)  # type: ignore[no-untyped-call]
    return loss


def choose(labels: Tensor, classes: list[int], total: float, generator: torch.Generator) -> Tensor:
    """Random rows, the same share of each class, fractions rounded up as often as they are large."""
    # A ruler as long as the total, laid at random on the whole numbers and cut into equal parts: a part
    # covers its share of them rounded up or down, and the ruler the total.
    bounds = torch.arange(len(classes) + 1, dtype=torch.float64) * total / max(len(classes), 1)
    sizes = (bounds + torch.rand((), generator=generator)).floor().long().diff().tolist()
    chosen = [torch.empty(0, dtype=torch.int64)]
    for label, size in zip(classes, sizes, strict=True):
        rows = torch.nonzero(labels == label).flatten()
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[:size]])
    return torch.cat(chosen)
