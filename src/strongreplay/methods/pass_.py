"""Prototype Augmentation and Self-Supervision (PASS).

Paper: Zhu et al., "Prototype Augmentation and Self-Supervision for Incremental Learning", 2021
(CVPR, pages 5871-5880)
No images are kept. Each image is learnt in its four quarter turns, as four classes. Of each old class a
prototype is kept, its mean feature; with noise of the first task's radius it trains the head. The features
stay near those of the old net. Prediction uses the columns of upright images.
Differences from the reference (the authors' code): one forward pass gives logits and features
(`second_forward=true`: two, so batch-norm statistics change twice); prototypes are means over all images,
also of short batches; the head has four rows for every class from the start, and the loss covers those of
seen classes, instead of growing. By our reading the four rows of a class start equal, as the net's row of it.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.errors import ConfigError
from strongreplay.methods.base import (
    Method,
    MethodConfig,
    OldNet,
    Problem,
    SavedGenerator,
    descend,
    predict_all,
)
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Task, Terms

TURNS = 4
TINY = 1e-12  # within the root of the distance: its slope at exactly zero is NaN


class PASSConfig(MethodConfig):
    distillation: float = Field(10.0, ge=0, description="weight of the distance to the old net's features")
    prototypes: float = Field(10.0, ge=0, description="weight of the loss on noisy prototypes")
    temperature: float = Field(0.1, gt=0, description="divides logits in training")
    second_forward: bool = Field(False, description="features from a second forward pass (reference)")


class TurningNet(nn.Module):
    """A net whose head has four rows for each class, one for each quarter turn."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier, given = classifier, classifier.head
        self.head = nn.Linear(given.in_features, TURNS * given.out_features, device="meta")
        self.head.weight = nn.Parameter(given.weight.detach().repeat_interleave(TURNS, 0))
        bias = given.weight.new_zeros(given.out_features) if given.bias is None else given.bias.detach()
        self.head.bias = nn.Parameter(bias.repeat_interleave(TURNS))
        given.requires_grad_(False)  # its rows are not used any more

    def features(self, inputs: Tensor) -> Tensor:
        return self.classifier.features(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits


class PASS(Method):
    resized_buffers = ("means", "mean_labels")
    net: TurningNet
    seen: Tensor
    means: Tensor
    mean_labels: Tensor
    radius: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: PASSConfig | None = None) -> None:
        super().__init__()
        self.config, self.view = config or PASSConfig(), problem.train_view
        self.net = TurningNet(with_features(net, "pass", problem.num_classes))
        self.old_net = OldNet(self.net)
        self.draws = SavedGenerator(problem.generator("prototypes"))
        # (C,) classes of the tasks so far; all before the first one
        self.register_buffer("seen", torch.ones(problem.num_classes, dtype=torch.bool))
        self.register_buffer("means", torch.empty(0, self.net.head.in_features))  # (K, D) the prototypes
        self.register_buffer("mean_labels", torch.empty(0, dtype=torch.int64))  # (K,) their classes
        self.register_buffer("radius", torch.zeros(()))  # of the first task, for all

    def begin_task(self, task: Task) -> Task:
        shape = tuple(task.train.inputs.shape)
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ConfigError(f"pass turns its images, so they must be square (N, C, H, H), got {shape}")
        if not self.old_net.exists:
            self.seen.zero_()
        self.seen[list(task.classes)] = True
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        config = self.config
        inputs, labels = turn(batch.inputs), turned_labels(batch.labels)
        features = self.net.features(inputs)
        terms = {"current": self.loss(self.net.head(features), labels)}
        if self.old_net.exists:
            if config.second_forward:
                features = self.net.features(inputs)
            old: Any = self.old_net.copy
            with torch.no_grad():
                target = old.features(inputs)
            terms["distillation"] = config.distillation * distance(features, target)
            noisy, classes = self.noisy_prototypes(len(batch))
            terms["prototypes"] = config.prototypes * self.loss(self.net.head(noisy), TURNS * classes)
        return descend(optimizer, terms)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over the rows of seen classes."""
        unseen = ~self.seen.repeat_interleave(TURNS)
        return cross_entropy((logits / self.config.temperature).masked_fill(unseen, -torch.inf), labels)

    def noisy_prototypes(self, count: int) -> tuple[Tensor, Tensor]:
        """`count` features of old classes, drawn uniformly, with their labels."""
        generator, device = self.draws.generator, self.means.device
        chosen = torch.randint(len(self.means), (count,), generator=generator).to(device)
        noise = torch.randn(count, self.means.shape[1], generator=generator).to(device)
        return self.means[chosen] + self.radius * noise, self.mean_labels[chosen]

    def end_task(self, task: Task) -> None:
        """Add the prototypes of the task's classes; the first task also sets the radius."""
        labels = task.train.labels.to(self.means.device)
        features = predict_all(self.net, task.train.inputs, self.view, self.net.features)
        known = labels.unique()
        groups = [features[labels == label] for label in known]
        if not self.old_net.exists:
            self.radius = spread(groups)
        kept = ~torch.isin(self.mean_labels, known)  # all, unless a class comes back
        self.means = torch.cat([self.means[kept], *(group.mean(0, keepdim=True) for group in groups)])
        self.mean_labels = torch.cat([self.mean_labels[kept], known])
        self.old_net.take()

    def predict(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net(inputs)
        return logits[:, ::TURNS]


def turn(inputs: Tensor) -> Tensor:
    """(4 B, C, H, H): each image followed by its three quarter turns."""
    return torch.stack([inputs.rot90(number, (2, 3)) for number in range(TURNS)], 1).flatten(0, 1)


def turned_labels(labels: Tensor) -> Tensor:
    """(4 B,) the label of each turn: 4 y, 4 y + 1, 4 y + 2, 4 y + 3."""
    return (TURNS * labels[:, None] + torch.arange(TURNS, device=labels.device)).flatten()


def distance(features: Tensor, target: Tensor) -> Tensor:
    """The norm of all differences together, neither squared nor averaged."""
    return ((features - target).square().sum() + TINY).sqrt()


def spread(groups: list[Tensor]) -> Tensor:
    """The root of the mean variance of a feature within a class, mean over classes; one sample has none."""
    squares = [(group - group.mean(0)).square().sum() / max(len(group) - 1, 1) for group in groups]
    return (torch.stack(squares).mean() / groups[0].shape[1]).sqrt()
