"""Incremental Classifier and Representation Learning (iCaRL).

Paper: Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", 2017,
https://arxiv.org/abs/1611.07725
References: the authors' Theano code, and mammoth, tag neurips2020, which gave the published numbers.
Features are normalised to length one as in the paper; mammoth does not normalise them
(`normalise_features=False`). The authors also average class means over flipped exemplars (`flip_means=True`).
Differences from mammoth: exemplars are replayed unchanged, while mammoth darkens and transposes them, so we
expect better results than the published ones.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, one_hot
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import (
    Method,
    MethodConfig,
    OldNet,
    Problem,
    check_one_a_class,
    descend,
    predict_all,
)
from strongreplay.methods.exemplars import herd_exemplars, join_exemplars
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Task, Terms


class ICaRLConfig(MethodConfig):
    memory_size: int = Field(200, ge=1, description="exemplars kept, shared equally by all seen classes")
    l2: float = Field(1e-5, ge=0, description="weight of the sum of squared weights")
    normalise_features: bool = Field(True, description="normalise features to length one")
    flip_means: bool = Field(False, description="average class means over flipped exemplars too")


class ICaRL(Method):
    net: Classifier
    old: Tensor
    current: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: ICaRLConfig | None = None) -> None:
        super().__init__()
        self.config = config or ICaRLConfig()
        check_one_a_class("icarl", self.config.memory_size, problem)
        self.net, self.old_net = with_features(net, "icarl", problem.num_classes), OldNet(net)
        self.plain_view = problem.test_view
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        no_class = torch.zeros(problem.num_classes, dtype=torch.bool)
        self.register_buffer("old", no_class)  # (C,) classes of finished tasks
        self.register_buffer("current", ~no_class)  # (C,) classes of this task; all before the first one
        self.means: tuple[Tensor, Tensor] | None = None  # a cache, computed from net and memory; not saved

    def begin_task(self, task: Task) -> Task:
        self.current.zero_()[list(task.classes)] = True
        return join_exemplars(task, self.memory)

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        logits = self.net(batch.inputs)
        targets = torch.zeros_like(logits).scatter_(1, batch.labels[:, None], 1.0)
        if self.old_net.exists:  # its outputs replace the labels in the columns of old classes
            targets = torch.where(self.current, targets, self.old_net(batch.inputs).sigmoid())
        terms = {"binary": binary(logits, targets, self.old | self.current)}
        self.means = None
        return descend(optimizer, terms, self.config.l2)

    def end_task(self, task: Task) -> None:
        self.old_net.take()
        self.old |= self.current
        self.means = None
        herd_exemplars(self.memory, task, int(self.old.sum()), self.features, self.old.device)

    def features(self, images: Tensor, mirrored: bool = False) -> Tensor:
        """(N, D) features of stored images, in evaluation mode and without augmentation."""
        return predict_all(
            self.net,
            images,
            lambda chunk: self.plain_view(chunk.flip(-1) if mirrored else chunk),
            lambda inputs: self.direct(self.net.features(inputs)),
        )

    def direct(self, features: Tensor) -> Tensor:
        return normalize(features, dim=1) if self.config.normalise_features else features

    def class_means(self) -> tuple[Tensor, Tensor]:
        """(C, D) mean features of the exemplars, and (C,) which classes have exemplars."""
        images, labels = self.memory.rows
        features = self.features(images)
        if self.config.flip_means:
            features = (features + self.features(images, mirrored=True)) / 2
        members = one_hot(labels, len(self.old)).to(features.dtype)  # (M, C)
        counts = members.sum(0)
        return self.direct(members.t() @ features / counts.clamp(min=1)[:, None]), counts > 0

    def predict(self, inputs: Tensor) -> Tensor:
        """Minus the squared distance to each class mean, or the net's logits while the memory is empty."""
        if len(self.memory) == 0:
            return super().predict(inputs)
        if self.means is None or self.means[0].device != inputs.device:
            self.means = self.class_means()
        means, known = self.means
        # Not by matrix product, which loses all digits of small distances.
        features, by = self.direct(self.net.features(inputs)), "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(features, means, compute_mode=by)
        return distances.square().neg().masked_fill(~known, torch.finfo(means.dtype).min)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.means = None
        super()._load_from_state_dict(state_dict, prefix, *args)


def binary(logits: Tensor, targets: Tensor, columns: Tensor) -> Tensor:
    """Binary cross-entropy averaged over the batch and the given columns."""
    weight = columns.to(logits.dtype)
    total = binary_cross_entropy_with_logits(logits, targets, weight, reduction="sum")
    return total / (len(logits) * weight.sum())
