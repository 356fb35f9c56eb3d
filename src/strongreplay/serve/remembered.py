"""RememberedSamples: the samples of the served version, for people: pictures, neighbours, confusions."""

import json
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from strongreplay.data import codec
from strongreplay.data.user_data import Label
from strongreplay.errors import ConfigError
from strongreplay.models.embeddings import features_of
from strongreplay.models.gate import HELD_OUT
from strongreplay.models.memory_view import Remembered, all_images, read_parts, samples_of
from strongreplay.models.model import Model
from strongreplay.serve.live import LiveModel

PICTURES = 12  # of one confusion


@dataclass(frozen=True, eq=False)
class RememberedSamples:
    """Replayed and held-out samples with their images, and the model that answers; computed once."""

    version: str
    model: Model
    samples: list[Remembered]
    images: Tensor

    @property
    def has_pictures(self) -> bool:
        """Whether images are kept, and not features of them."""
        return self.images.dim() == 4

    @cached_property
    def row_of(self) -> dict[int, int]:
        """A row for each id; a sample in several rows has equal pixels in all of them."""
        return {one.id: row for row, one in enumerate(self.samples)}

    @cached_property
    def features(self) -> Tensor:
        return features_of(self.model, self.images)

    @cached_property
    def confusions(self) -> list[dict[str, Any]]:
        """Wrong answers on held-out samples by pair of classes, the most frequent first."""
        rows = [row for row, one in enumerate(self.samples) if one.kind == HELD_OUT]
        answers = self.model.answers(self.images[rows]) if rows else []
        pairs: dict[tuple[Label, Label], list[int]] = {}
        judged: dict[Label, int] = {}
        for row, answer in zip(rows, answers, strict=True):
            one = self.samples[row]
            judged[one.label] = judged.get(one.label, 0) + 1
            if answer != one.label:
                pairs.setdefault((one.label, answer), []).append(one.id)
        order = sorted(pairs.items(), key=lambda entry: -len(entry[1]))
        return [
            {
                "label": label,
                "answer": answer,
                "count": len(ids),
                "judged_by": judged[label],
                "ids": ids[:PICTURES],
            }
            for (label, answer), ids in order
        ]

    def png(self, number: int) -> bytes:
        if not self.has_pictures:
            raise ConfigError(f"{self.version} keeps features of its samples, no images")
        if number not in self.row_of:
            raise ConfigError(f"no remembered sample of {self.version} has the id {number}")
        row = self.row_of[number]
        return codec.encode(self.images[row : row + 1], "png")[0]

    def nearest(self, image: Tensor, count: int) -> list[dict[str, Any]]:
        """The samples with the most similar features to a (1, C, H, W) image; each sample once."""
        rows = list(self.row_of.values())
        if not rows:
            return []
        likeness = self.features[rows] @ features_of(self.model, image)[0]
        values, places = likeness.topk(min(count, len(rows)))
        found = [self.samples[rows[place]] for place in places.tolist()]
        return [
            {"id": one.id, "label": one.label, "source": one.source, "kind": one.kind, "similarity": value}
            for one, value in zip(found, values.tolist(), strict=True)
        ]


class SampleCache:
    """The samples of the served version; read again when a version or an erasure changes them."""

    def __init__(self, live: LiveModel) -> None:
        self.live, self.lock = live, threading.Lock()
        self.key = ""
        self.found: RememberedSamples | None = None

    def read(self) -> RememberedSamples:
        with self.lock:
            loaded = self.live.loaded
            name = loaded.version.name
            key = json.dumps([name, self.live.store.manifest(name)["parts"]])
            if self.found is None or key != self.key:
                _, parts = read_parts(self.live.store, name)
                self.found = RememberedSamples(name, loaded.model, samples_of(parts), all_images(parts))
                self.key = key
            return self.found
