"""Which of many unlabelled samples are most worth a label: unsure, unlike what is known, and diverse."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from strongreplay.data.user_data import Label
from strongreplay.models.embeddings import embed
from strongreplay.models.model import Model
from strongreplay.models.ood_scores import Energy


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sample worth a label, with the model's answer."""

    name: str
    guess: Label
    probability: float
    unsure: float  # 0 to 1: the share of all samples with a clearer answer
    unlike: float  # 0 to 1: the share of all samples that are more like known ones

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class ReviewCollector:
    """Scores of samples, batch by batch; no image is kept."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.names: list[str] = []
        self.logits: list[Tensor] = []
        self.features: list[Tensor] = []

    def add(self, names: Sequence[str], images: Tensor) -> None:
        self.names += names
        _, logits, features = embed(self.model, images)
        self.logits.append(logits)
        self.features.append(features)

    def choose(self, count: int) -> list[Candidate]:
        """The samples most worth a label, the first chosen first."""
        if not self.names:
            return []
        logits = torch.cat(self.logits)
        probabilities = logits.double().softmax(1)
        best = probabilities.topk(min(2, len(self.model.labels)), dim=1).values
        unsure = ranks(-(best[:, 0] - best[:, 1] if best.shape[1] > 1 else best[:, 0]))
        unlike = ranks(Energy(self.model)(logits, logits)[:, 0])
        rows = choose_diverse(torch.cat(self.features), torch.maximum(unsure, unlike), count)
        columns = probabilities.argmax(1).tolist()
        return [
            Candidate(
                self.names[row],
                self.model.labels[columns[row]],
                float(best[row, 0]),
                float(unsure[row]),
                float(unlike[row]),
            )
            for row in rows
        ]


def ranks(values: Tensor) -> Tensor:
    """(N,) the share of the other values that are lower."""
    order = values.argsort(stable=True).argsort(stable=True)
    return order.double() / max(1, len(values) - 1)


def choose_diverse(features: Tensor, worth: Tensor, count: int) -> list[int]:
    """Rows by worth times distance to the nearest chosen row, one after the other."""
    chosen: list[int] = []
    away = torch.ones(len(features), dtype=torch.float64)
    for _ in range(min(count, len(features))):
        gain = worth * away
        gain[chosen] = -1.0
        row = int(gain.argmax())
        chosen.append(row)
        away = torch.minimum(away, (1 - features @ features[row]).double().clamp(min=0))
    return chosen
