"""Dynamically Expandable Representation (DERNet; the paper calls it DER, here the name of another method).

Paper: Yan, Xie and He, "DER: Dynamically Expandable Representation for Class Incremental Learning", 2021,
https://arxiv.org/abs/2103.16788
Each task adds a feature extractor, a copy of the last one; the earlier ones are frozen. A linear classifier
without bias takes all features together. From the second task on, an auxiliary head on the new extractor
separates the new classes from each other and from all old ones together. Then the classifier alone is
trained anew on equally many samples of each class. Exemplars are herded and learnt with the next task.
Differences from the reference (the authors' code, its variant without masks): after the warm-up the optimiser
starts anew, with the heads. The classifier has a row for every class from the start; the loss covers those of
seen classes. The masks that prune channels were never released and are left out.
"""

from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import (
    MAIN,
    Method,
    MethodConfig,
    Phase,
    Problem,
    SavedGenerator,
    check_one_a_class,
    descend,
    evaluation_mode,
)
from strongreplay.methods.exemplars import herd_exemplars, join_exemplars, unit_features
from strongreplay.methods.expansion import FrozenNets, add_missing, notice_of_size, reset_weight
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Split, Task, Terms
from strongreplay.sampling import balanced_rows


class DERNetConfig(MethodConfig):
    memory_size: int = Field(200, ge=1, description="exemplars kept, shared equally by all seen classes")
    auxiliary: float = Field(1.0, ge=0, description="weight of the auxiliary head's loss")
    warmup_epochs: int = Field(0, ge=0, description="epochs of linear warm-up, before those of train.epochs")
    warmup_lr: float = Field(0.1, gt=0, description="learning rate at the end of the warm-up")
    head_epochs: int = Field(30, ge=0, description="epochs that train the classifier alone after a task")
    head_lr: float = Field(0.1, gt=0, description="learning rate of these epochs, a tenth from half on")
    head_decay: float = Field(5e-4, ge=0, description="weight decay of these epochs")
    head_temperature: float = Field(5.0, gt=0, description="divides logits in these epochs")


class ExpandingNet(nn.Module):
    """The extractor in training, a classifier of the features of all extractors, and an auxiliary head."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.live, given = classifier, classifier.head
        given.requires_grad_(False)  # only its weights are used, as the first classifier's
        self.weight = nn.Parameter(given.weight.detach().clone())  # (C, (t + 1) D)
        self.auxiliary = nn.Parameter(given.weight.new_empty(0, given.in_features))  # (K + 1, D)

    def expand(self, num_new: int) -> None:
        """Make room for the features of one more extractor, and for new classes in the auxiliary head."""
        rows, width = self.weight.shape
        size = self.auxiliary.shape[1]
        self.weight = nn.Parameter(self.weight.new_zeros(rows, width + size))
        self.auxiliary = nn.Parameter(self.weight.new_zeros(num_new + 1, size))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("weight", "auxiliary"):
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != getattr(self, name).shape:
                setattr(self, name, nn.Parameter(self.weight.new_zeros(saved.shape)))
        super()._load_from_state_dict(state_dict, prefix, *args)


class DERNet(Method):
    resized_buffers = ("subset",)
    net: ExpandingNet
    seen: Tensor
    place: Tensor
    subset: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: DERNetConfig | None = None) -> None:
        super().__init__()
        self.config = config or DERNetConfig()
        self.view, self.plain_view = problem.train_view, problem.test_view
        check_one_a_class("dernet", self.config.memory_size, problem)
        self.net = ExpandingNet(with_features(net, "dernet", problem.num_classes))
        self.frozen, self.num_tasks = FrozenNets(self.net.live), problem.num_tasks
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        self.draws = SavedGenerator(problem.generator("heads"))
        # (C,) classes of the tasks so far; all before the first one
        self.register_buffer("seen", torch.ones(problem.num_classes, dtype=torch.bool))
        # (C,) label of each class in the auxiliary head: 0 for old ones
        self.register_buffer("place", torch.zeros(problem.num_classes, dtype=torch.int64))
        self.register_buffer("subset", torch.empty(0, dtype=torch.int64))  # rows that train the classifier

    def notice(self) -> str:
        return notice_of_size("dernet", self.net.live, self.num_tasks)

    def begin_task(self, task: Task) -> Task:
        if len(self.memory) == 0:
            self.seen.zero_()
        else:
            new = [label for label in task.classes if not self.seen[label]]
            self.place.copy_(auxiliary_labels(len(self.place), new))
            self.frozen.take()
            self.net.expand(len(new))
            self.reset_heads()
        self.seen[list(task.classes)] = True
        return join_exemplars(task, self.memory)

    def phases(self, task: Task) -> list[Phase]:
        """A warm-up, after which the heads start anew; the main phase; then the classifier alone."""
        config, found = self.config, [Phase(MAIN, None, self.observe)]
        if config.warmup_epochs:
            rate = partial(warming_rate, config.warmup_lr, config.warmup_epochs)
            warm_up = Phase("warm-up", config.warmup_epochs, self.observe, rate=rate)
            found = [warm_up, Phase(MAIN, None, self.observe, begin=self.reset_heads)]
        if len(self.memory) and config.head_epochs:
            head = Phase(
                "classifier",
                config.head_epochs,
                self.fit_classifier,
                data=partial(self.balanced, task.train),
                parameters=lambda: [self.net.weight],
                optimizer=partial(
                    torch.optim.SGD, lr=config.head_lr, momentum=0.9, weight_decay=config.head_decay
                ),
                rate=partial(halfway_rate, config.head_lr, config.head_epochs),
                view=self.view,
                begin=partial(self.begin_classifier, task.train),
            )
            found.append(head)
        return found

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        add_missing(optimizer, self.net)
        newest = self.net.live.features(batch.inputs)
        features = torch.cat([*self.frozen.each_features(batch.inputs), newest], 1)
        terms = {"current": self.loss(features, batch.labels)}
        if len(self.frozen.nets) and self.config.auxiliary:
            loss = cross_entropy(newest @ self.net.auxiliary.t(), self.place[batch.labels])
            terms["auxiliary"] = self.config.auxiliary * loss
        return descend(optimizer, terms)

    def loss(self, features: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
        """Cross-entropy among seen classes."""
        logits = features @ self.net.weight.t()
        return cross_entropy((logits / temperature).masked_fill(~self.seen, -torch.inf), labels)

    def reset_heads(self) -> None:
        for weight in (self.net.weight, self.net.auxiliary):
            reset_weight(weight, self.draws.generator)

    def begin_classifier(self, train: Split) -> None:
        self.subset = balanced_rows(train.labels.cpu(), self.draws.generator).to(self.subset.device)
        reset_weight(self.net.weight, self.draws.generator)

    def balanced(self, train: Split) -> Split:
        return train.take(self.subset.to(train.labels.device))

    def fit_classifier(self, batch: Batch, optimizer: Optimizer) -> Terms:
        with torch.no_grad(), evaluation_mode(self.net):
            features = self.all_features(batch.inputs)
        loss = self.loss(features, batch.labels, self.config.head_temperature)
        return descend(optimizer, {"classifier": loss})

    def all_features(self, inputs: Tensor) -> Tensor:
        """(B, (t + 1) D) the features of all extractors."""
        return torch.cat([*self.frozen.each_features(inputs), self.net.live.features(inputs)], 1)

    def end_task(self, task: Task) -> None:
        features = unit_features(self.net, self.plain_view, self.all_features)
        herd_exemplars(self.memory, task, int(self.seen.sum()), features, self.seen.device)

    def predict(self, inputs: Tensor) -> Tensor:
        return self.all_features(inputs) @ self.net.weight.t()


def auxiliary_labels(num_classes: int, new: list[int]) -> Tensor:
    """(C,) 1, 2, ... for new classes, 0 for all others."""
    place = torch.zeros(num_classes, dtype=torch.int64)
    place[new] = torch.arange(1, len(new) + 1)
    return place


def warming_rate(lr: float, epochs: int, epoch: int, part: float) -> float:
    return lr * (epoch + 1) / epochs


def halfway_rate(lr: float, epochs: int, epoch: int, part: float) -> float:
    return lr if epoch < epochs // 2 else lr / 10
