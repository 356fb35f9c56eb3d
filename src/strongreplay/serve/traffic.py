"""Traffic: a bounded sample of what the service was asked lately, as scores; no image is kept."""

import threading
from collections import deque
from typing import Any

import torch
from torch import Tensor

from strongreplay.errors import DataError
from strongreplay.models.drift import Reference, describe, make_reference, usual_measure
from strongreplay.models.gate import HELD_OUT
from strongreplay.models.ood_scores import Measure
from strongreplay.serve.live import ServedModel
from strongreplay.serve.remembered import RememberedSamples, SampleCache

ROOM = 2000  # samples


class Traffic:
    """What was measured of the newest samples that the served version answered, and the predicted columns."""

    def __init__(self, cache: SampleCache) -> None:
        self.cache, self.lock = cache, threading.Lock()
        self.version = ""
        self.measure: Measure | None = None
        self.rows: deque[tuple[list[float], int]] = deque(maxlen=ROOM)
        self.known: tuple[RememberedSamples, Reference] | None = None

    def note(self, loaded: ServedModel, stored: Tensor, logits: Tensor) -> None:
        """Called with every batch, by one thread; a new version begins anew."""
        is_new = self.measure is None or loaded.version.name != self.version
        measure = usual_measure(loaded.model) if is_new else self.measure
        assert measure is not None
        found = zip(measure(stored, logits).tolist(), logits.argmax(1).tolist(), strict=True)
        with self.lock:
            if is_new:
                self.version, self.measure = loaded.version.name, measure
                self.rows.clear()
            self.rows.extend(found)

    def report(self) -> dict[str, Any]:
        """The same as `ser drift --json`, without groups; `problem` says why nothing can be compared."""
        try:
            reference = self.reference()
        except DataError as error:  # too few held-out samples
            return {"version": self.version, "samples": 0, "over": False, "problem": str(error)}
        with self.lock:
            rows = list(self.rows) if self.version == reference.version else []
        if not rows:
            return {"version": reference.version, "samples": 0, "over": False}
        parts = torch.tensor([parts for parts, _ in rows], dtype=torch.float64)
        columns = torch.tensor([column for _, column in rows])
        return describe(reference, reference.sum_up(parts), columns).to_dict()

    def reference(self) -> Reference:
        kept = self.cache.read()
        if self.known is None or self.known[0] is not kept:
            rows = [row for row, one in enumerate(kept.samples) if one.kind == HELD_OUT]
            column = {label: place for place, label in enumerate(kept.model.labels)}
            classes = torch.tensor([column[kept.samples[row].label] for row in rows], dtype=torch.int64)
            self.known = kept, make_reference(kept.version, kept.model, kept.images[rows], classes)
        return self.known[1]

    def share(self) -> tuple[int, float | None]:
        """For the metrics: how many samples, and the share of unlike ones if it is known."""
        found = self.report()
        return found["samples"], found.get("share")
