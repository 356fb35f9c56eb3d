"""Model: a classifier that is kept up to date, with everything that a later update needs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from strongreplay.data.user_data import Label
from strongreplay.errors import DataError
from strongreplay.methods import Method
from strongreplay.methods.base import evaluation_mode
from strongreplay.models.features import FeatureReader
from strongreplay.models.held_out import HeldOut
from strongreplay.models.samples import SampleIndex
from strongreplay.models.settings import ModelSettings
from strongreplay.models.views import plain_view
from strongreplay.nets import Classifier
from strongreplay.nets.backbones import Backbone
from strongreplay.protocol import View


@dataclass
class Model:
    settings: ModelSettings
    shape: tuple[int, ...]
    mean: list[float]
    std: list[float]
    labels: list[Label]  # by column, never reordered
    method: Method
    generators: dict[str, torch.Generator]
    held: HeldOut
    samples: SampleIndex
    device: torch.device
    view: View  # of training images
    num_updates: int = 0
    next_id: int = 1  # the id of the next sample that arrives
    learnt: Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.int64)
    )  # see `models.duplicates`
    whole: bool = True  # False: it can predict, but not learn
    backbone: Backbone | None = None  # of which the method sees features; or, with net.tune=all, its body
    notes: list[str] = field(default_factory=list)  # what a user should know after loading

    @cached_property
    def reader(self) -> FeatureReader | None:
        """From images to what the method sees, if that is features of a frozen backbone."""
        is_used = self.backbone is not None and self.settings.net.is_frozen
        return FeatureReader(self.backbone, self.device) if self.backbone and is_used else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of a sample as the method and the memory have it."""
        return self.shape if self.reader is None else (self.reader.backbone.num_features,)

    def stored(self, inputs: Tensor) -> Tensor:
        """Samples as the method has them: of images, the features, if it has a frozen backbone."""
        is_images = self.reader is not None and tuple(inputs.shape[1:]) == self.shape
        return self.reader(inputs) if self.reader and is_images else inputs

    @property
    def memory(self) -> Any:
        """The method's memory, if it has one."""
        return getattr(self.method, "memory", None)

    @property
    def head_size(self) -> int:
        """Number of outputs of the net: one for each label, and the reserve."""
        return cast(Classifier, self.method.net).head.out_features

    @property
    def test_view(self) -> View:
        return plain_view(self.settings, self.stored_shape, self.mean, self.std)

    def kept_samples(self) -> list[tuple[Tensor, Tensor]]:
        """(images, ids) of the replayed samples, then of the held-out ones; not copied."""
        memory = self.memory
        replayed = [(memory.rows.images, memory.ids)] if memory is not None and len(memory) else []
        return [*replayed, (self.held.images, self.held.ids)]

    def scores(self, inputs: Tensor) -> Tensor:
        """(N, K) logits over the known classes, on the host."""
        return torch.cat(list(self.score_batches(inputs)))

    def answers(self, inputs: Tensor, on_batch: Callable[[int], None] = lambda count: None) -> list[Label]:
        """The most likely label of each sample; one batch of logits is in memory at a time."""
        found: list[Label] = []
        for logits in self.score_batches(inputs):
            found += [self.labels[column] for column in logits.argmax(1).tolist()]
            on_batch(len(logits))
        return found

    @torch.no_grad()
    def score_batches(self, inputs: Tensor, batch_size: int = 500) -> Iterator[Tensor]:
        if tuple(inputs.shape[1:]) not in (self.shape, self.stored_shape):
            raise DataError(f"the model takes samples of shape {self.shape}, got {tuple(inputs.shape[1:])}")
        view = self.test_view
        with evaluation_mode(self.method):
            for batch in inputs.split(batch_size):
                batch = self.stored(batch)
                yield self.method.predict(view(batch.to(self.device)))[:, : len(self.labels)].cpu()
