"""Signs of trouble in unlabelled data: samples unlike those the model knows, and other shares of classes.

A sample is unlike if its score is above a threshold that the held-out samples exceed at a stated rate. The
measures are in `ood_scores.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor

from strongreplay.data.user_data import Label
from strongreplay.errors import ConfigError, DataError
from strongreplay.models.clusters import Cluster, find_clusters, typical_distance
from strongreplay.models.embeddings import embed
from strongreplay.models.memory_view import images_of, read_parts
from strongreplay.models.model import Model
from strongreplay.models.ood_scores import Energy, Measure, Nearest, distances, statistics_of
from strongreplay.models.parts import FROZEN, TO_ANSWER, model_of
from strongreplay.models.share_tests import ShareChange, compare_shares
from strongreplay.models.store import Store, Version

Kind = Literal["auto", "energy", "features"]  # auto: features if SLDA has statistics of them, else energy
RATE = 0.05  # of false alarms among samples like the held-out ones
LIMIT = 0.15  # of unlike samples; a larger share is a sign of trouble
MOST_CLUSTERED = 2000  # unlike samples that are sorted into clusters


@dataclass(frozen=True, eq=False)
class Reference:
    """What new data are compared with: the held-out samples of a version."""

    version: str
    labels: list[Label]
    kind: Kind
    rate: float
    threshold: float
    count: int  # held-out samples
    predicted: list[int]  # how many of them were given each label
    radius: float  # distance of features within a class
    measure: Measure
    centre: Tensor  # of the parts of the measure on held-out samples, if there are several
    scale: Tensor

    def sum_up(self, parts: Tensor) -> Tensor:
        """(N,) scores of (N, P) parts."""
        return ((parts - self.centre) / self.scale).sum(1)


@dataclass(frozen=True, slots=True)
class DriftReport:
    version: str
    samples: int
    unlike: int
    share: float
    rate: float
    limit: float
    threshold: float
    score: str
    held_out: int
    shares_p: float | None  # of the test that all shares of predicted classes are as on held-out samples
    classes: tuple[ShareChange, ...]  # the most surprising first
    clusters: tuple[Cluster, ...]  # unlike samples that look like a class of their own; the largest first

    @property
    def is_over(self) -> bool:
        return self.share > self.limit

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"over": self.is_over}


@dataclass(frozen=True, eq=False)
class Arrivals:
    """What is known of new samples: names, scores and predicted columns, with features of the unlike ones."""

    names: list[str]
    scores: Tensor
    columns: Tensor
    unlike_rows: list[int]
    features: Tensor
    images: Tensor  # of the unlike samples


def choose_threshold(scores: Tensor, rate: float) -> float:
    """The score that a further sample of the same kind exceeds with a probability of at most `rate`."""
    if not 0 < rate < 1:
        raise ConfigError(f"the rate of false alarms must be between 0 and 1, got {rate:g}; try 0.05")
    place = ceil((len(scores) + 1) * (1 - rate))
    if place > len(scores):
        need = ceil(1 / rate) - 1
        raise DataError(
            f"{len(scores)} held-out samples, but false alarms of {rate:.1%} need at least {need}; "
            "learn with a larger --memory or hold more out (learner.val), or allow more false alarms"
        )
    return float(scores.sort().values[place - 1])


def load_reference(
    store: Store, name: str | None, device: torch.device, rate: float = RATE, kind: Kind = "auto"
) -> tuple[Version, Model, Reference]:
    version, parts = read_parts(store, name, (*TO_ANSWER, FROZEN, "held"))
    held = parts.pop("held", None)
    model = model_of(parts, device)
    images = images_of(held["samples"]) if held else torch.empty(0, *model.shape)
    columns = held["columns"] if held else torch.empty(0, dtype=torch.int64)
    return version, model, make_reference(version.name, model, images, columns, rate, kind)


def make_reference(
    version: str, model: Model, images: Tensor, columns: Tensor, rate: float = RATE, kind: Kind = "auto"
) -> Reference:
    """The reference of held-out images and their classes."""
    if not len(images):
        choose_threshold(torch.empty(0), rate)
    stored, logits, features = embed(model, images)
    measure = usual_measure(model) if kind != "energy" else Energy(model)
    if kind == "features" and isinstance(measure, Energy):
        measure, parts = Nearest(model, features), distances(features, features, same=True)[:, None]
    else:
        parts = measure(stored, logits)
    is_sum = parts.shape[1] > 1 and len(parts) > 1
    centre = parts.mean(0) if is_sum else torch.zeros(1)
    scale = parts.std(0).clamp(min=1e-9) if is_sum else torch.ones(1)
    return Reference(
        version,
        list(model.labels),
        "energy" if isinstance(measure, Energy) else "features",
        rate,
        choose_threshold(((parts - centre) / scale).sum(1), rate),
        len(images),
        logits.argmax(1).bincount(minlength=len(model.labels)).tolist(),
        typical_distance(features, columns),
        measure,
        centre,
        scale,
    )


def usual_measure(model: Model) -> Measure:
    """The default measure; needs no held-out samples."""
    return statistics_of(model) or Energy(model)


class Collector:
    """Scores new samples batch by batch; of the images only unlike ones are kept."""

    def __init__(self, model: Model, reference: Reference) -> None:
        self.model, self.reference = model, reference
        self.names: list[str] = []
        self.scores: list[Tensor] = [torch.empty(0, dtype=torch.float64)]
        self.columns: list[Tensor] = [torch.empty(0, dtype=torch.int64)]
        self.unlike_rows: list[int] = []
        self.features: list[Tensor] = []
        self.images: list[Tensor] = []

    def add(self, names: Sequence[str], images: Tensor) -> None:
        stored, logits, features = embed(self.model, images)
        scores = self.reference.sum_up(self.reference.measure(stored, logits))
        rows = (scores > self.reference.threshold).nonzero().flatten()
        self.unlike_rows += (rows + len(self.names)).tolist()
        room = max(0, MOST_CLUSTERED - sum(map(len, self.features)))
        self.features.append(features[rows[:room]])
        self.images.append(images[rows[:room]])
        self.names += names
        self.scores.append(scores)
        self.columns.append(logits.argmax(1))

    def finish(self) -> Arrivals:
        """After at least one batch."""
        return Arrivals(
            self.names,
            torch.cat(self.scores),
            torch.cat(self.columns),
            self.unlike_rows,
            torch.cat(self.features),
            torch.cat(self.images),
        )


def report_drift(reference: Reference, arrivals: Arrivals, limit: float = LIMIT) -> DriftReport:
    clusters = find_clusters(
        arrivals.features, [arrivals.names[row] for row in arrivals.unlike_rows], reference.radius
    )
    return describe(reference, arrivals.scores, arrivals.columns, limit, clusters)


def describe(
    reference: Reference,
    scores: Tensor,
    columns: Tensor,
    limit: float = LIMIT,
    clusters: Sequence[Cluster] = (),
) -> DriftReport:
    """The report on scores and predicted columns of at least one sample."""
    unlike = int((scores > reference.threshold).sum())
    arrived = columns.bincount(minlength=len(reference.labels)).tolist()
    together, changes = compare_shares(reference.labels, reference.predicted, arrived)
    return DriftReport(
        version=reference.version,
        samples=len(scores),
        unlike=unlike,
        share=unlike / len(scores),
        rate=reference.rate,
        limit=limit,
        threshold=reference.threshold,
        score=reference.kind,
        held_out=reference.count,
        shares_p=together,
        classes=tuple(changes),
        clusters=tuple(clusters),
    )
