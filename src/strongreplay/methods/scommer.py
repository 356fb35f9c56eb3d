"""Sparse Coding in a Multi-Memory system for Experience Replay (SCoMMER).

Paper: Sarfraz et al., "Sparse Coding in a Dual Memory System for Lifelong Learning", 2023,
https://arxiv.org/abs/2301.05058
In each layer only the channels with the largest activity of a sample stay on (k winners). In the last stage
stream samples also lose random channels, so that a class uses channels it used before, and a new class those
that others use less. An averaged net gives targets for replayed samples and predicts (our reading: the
reference, the authors' code, scores both nets, and so do we, as `predictors`).
Two means of cross-entropy, the replayed batch first. ResNet18 loses the ReLU after each block's sum; in other
nets every ReLU module becomes k winners and ReLU.
Differences from the reference: only the last stage counts its channels, because the rates of other stages are
never used; the averaged net has no rates of its own, which are NaN there; a method learns the end of an epoch
from the number of samples.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, pad
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.averaged import AveragedNet
from strongreplay.methods.base import Method, Problem, ReplayConfig, descend, replay_count
from strongreplay.methods.k_winners import KWinners, num_channels, replace_relus
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Task, Terms

RATES = ("counts", "class_counts", "keep", "class_keep")


class SCoMMERConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept")
    winners: tuple[float, ...] = Field(
        (0.9, 0.9, 0.9, 0.8), min_length=1, description="part of channels that stay on, of the last stages"
    )
    penalty: float = Field(0.15, ge=0, description="weight of the distance to the averaged net")
    rate: float = Field(0.5, ge=0, le=1, description="probability to update the averaged net in a step")
    decay: float = Field(0.999, ge=0, le=1, description="maximal decay of the averaged net")
    dropout: bool = Field(True, description="stream samples lose channels of the last stage")
    alpha_layer: float = Field(5.0, ge=0, description="how fast channels in use are kept less often")
    alpha_class: float = Field(2.0, ge=0, description="how fast a class keeps the channels it uses")
    refresh_after: int = Field(30, ge=0, description="epochs of a task before rates follow at each epoch")
    eval_net: Literal["averaged", "working"] = Field("averaged", description="the net that predicts")


class SCoMMER(Method):
    net: Classifier

    def __init__(self, net: nn.Module, problem: Problem, config: SCoMMERConfig | None = None) -> None:
        super().__init__()
        self.config, self.view = config or SCoMMERConfig(), problem.train_view
        self.net, self.last = replace_relus(net, self.config.winners)
        self.usage = Usage(self.net, self.last.share, self.config, problem.generator("dropout"))
        self.averaged = AveragedNet(
            self.net, self.config.rate, self.config.decay, problem.generator("averaged updates")
        )
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        self.num_samples = self.epoch_size = 0  # passed in this task; in an epoch of it

    def begin_task(self, task: Task) -> Task:
        self.num_samples, self.epoch_size = 0, len(task.train)
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        rest = -self.num_samples % max(self.epoch_size, 1)
        if 0 < rest < len(batch):  # the last epoch has left out a short batch
            self.count_samples(rest)
        terms = self.replayed(replay_count(self.config, batch)) if len(self.memory) else {}
        with self.usage.watching(self.last, batch.labels):
            terms["current"] = cross_entropy(self.net(batch.inputs), batch.labels)
        terms = descend(optimizer, terms)
        self.memory.add(LabelledSamples(batch.images, batch.labels), batch.ids)
        self.averaged.follow()
        self.count_samples(len(batch))
        return terms

    def count_samples(self, count: int) -> None:
        """Count samples of the task; at an epoch's end the rates of classes may follow."""
        self.num_samples += count
        epoch, rest = divmod(self.num_samples, max(self.epoch_size, 1))
        if rest == 0 and epoch - 1 > self.config.refresh_after:  # the number of the epoch that ends, from 0
            self.usage.refresh_classes()

    def replayed(self, count: int) -> Terms:
        replayed = self.memory.sample(count)
        inputs = self.view(replayed.images)
        target, logits = self.averaged(inputs), self.net(inputs)
        return {
            "replay": cross_entropy(logits, replayed.labels),
            "consistency": self.config.penalty * mse_loss(logits, target),
        }

    def end_task(self, task: Task) -> None:
        self.usage.refresh_layer()
        self.usage.refresh_classes()

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        self.averaged.take_head()
        self.usage.fit(num_classes)

    def answering_net(self) -> nn.Module:
        return self.predictors()[self.config.eval_net]

    def predictors(self) -> dict[str, nn.Module]:
        return {"averaged": self.averaged, "working": self.net}

    def get_extra_state(self) -> tuple[int, int]:
        return self.num_samples, self.epoch_size

    def set_extra_state(self, state: tuple[int, int]) -> None:
        self.num_samples, self.epoch_size = state


class Usage(nn.Module):
    """How often each channel of the last stage was on, and the dropout that follows from it."""

    counts: Tensor  # (n,) times on
    class_counts: Tensor  # (C, n)
    keep: Tensor  # (n,) weights of channels in the mask of a layer
    class_keep: Tensor  # (C, n) probabilities of channels in the mask of a class

    def __init__(
        self, net: Classifier, share: float, config: SCoMMERConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config, self.generator = config, generator
        size, num_classes = net.head.in_features, net.head.out_features
        self.num_open = min(size, num_channels(1.1 * share, size))
        self.register_buffer("counts", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("class_counts", torch.zeros(num_classes, size, dtype=torch.int64))
        keep = torch.ones(size)
        if any(isinstance(layer, nn.Conv2d) for layer in net.modules()):
            keep[self.num_open :] = 0  # as published: the first ones; MLPs may use all
        self.register_buffer("keep", keep)
        self.register_buffer("class_keep", torch.zeros(num_classes, size))

    @contextmanager
    def watching(self, layer: KWinners, labels: Tensor) -> Iterator[None]:
        """Inside, the layer drops channels of samples with these labels, and counts those that stay on."""
        layer.before = (lambda maps: maps * self.mask(labels, maps)) if self.config.dropout else None
        layer.after = lambda maps: self.count(maps, labels)
        try:
            yield
        finally:
            layer.before = layer.after = None

    def mask(self, labels: Tensor, maps: Tensor) -> Tensor:
        """(B, n, 1, ...): the mask of each sample's class, or of the layer if its class is new."""
        keys, draws = torch.rand(2, len(self.keep), generator=self.generator).to(self.keep.device)
        # The first of exponential times at these rates are a weighted draw without replacement.
        times = -keys.clamp(min=1e-30).log() / self.keep
        layer = torch.zeros_like(self.keep, dtype=torch.bool)
        layer[times.topk(self.num_open, largest=False).indices] = True
        rates = self.class_keep.index_select(0, labels)
        chosen = torch.where(rates.sum(1, keepdim=True) > 0, draws < rates, layer)
        return chosen.to(maps.dtype).view(*chosen.shape, *[1] * (maps.dim() - 2))

    def count(self, maps: Tensor, labels: Tensor) -> None:
        active = ((maps.flatten(2).sum(2) if maps.dim() > 2 else maps) > 0).to(torch.int64)
        self.counts += active.sum(0)
        self.class_counts.index_add_(0, labels, active)

    def refresh_layer(self) -> None:
        shares = self.counts / self.counts.amax().clamp(min=1)
        self.keep = torch.exp(-self.config.alpha_layer * shares)

    def refresh_classes(self) -> None:
        shares = self.class_counts / (self.class_counts.amax(1, keepdim=True) + 1e-16)
        self.class_keep = 1 - torch.exp(-self.config.alpha_class * shares)

    def fit(self, num_classes: int) -> None:
        """Add rows for new classes."""
        missing = num_classes - len(self.class_counts)
        if missing > 0:
            self.class_counts = pad(self.class_counts, (0, 0, 0, missing))
            self.class_keep = pad(self.class_keep, (0, 0, 0, missing))

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in RATES:
            saved = state_dict[prefix + name]
            setattr(self, name, torch.empty_like(saved, device=self.counts.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
