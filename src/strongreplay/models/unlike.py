"""How unlike the known samples a sample is: a score by the logits, and one by the features.

The score by features is the cosine distance to the nearest held-out sample. A model that learns by SLDA adds
the angle to the nearest class mean, seen from the mean of all samples, in units of the covariance within
classes; both parts are in units of their deviation on held-out samples.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from strongreplay.methods.slda import SLDA
from strongreplay.models.model import Model


def energy(logits: Tensor) -> Tensor:
    """(N,) energy of logits: low where the net is sure of some class."""
    return -logits.double().logsumexp(1)


def distances(features: Tensor, known: Tensor, *, same: bool = False) -> Tensor:
    """(N,) cosine distance to the nearest known sample; with `same`, of each known one to the others."""
    likeness = features @ known.T
    if same:
        likeness.fill_diagonal_(-1.0)
    return (1 - likeness.max(1).values).double()


class ClassAngles:
    """One minus the cosine between a sample and the nearest class mean, in the units of SLDA."""

    def __init__(self, method: SLDA) -> None:
        counts = method.counts.double().cpu()
        means = method.means.double().cpu()[counts > 0]
        counts = counts[counts > 0]
        self.net = method.net
        self.factor = torch.linalg.cholesky(method.covariance().double().cpu())
        self.centre = (means * counts[:, None]).sum(0) / counts.sum()
        self.directions = self.direct(means)

    def direct(self, features: Tensor) -> Tensor:
        away = (features.double().cpu() - self.centre).T
        return normalize(torch.linalg.solve_triangular(self.factor, away, upper=False).T, dim=1)

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        return 1 - (self.direct(self.net.features(inputs)) @ self.directions.T).max(1).values


@dataclass(frozen=True, eq=False)
class FeatureScore:
    """The score by features; `centre` and `scale` are mean and deviation of its parts on held-out samples."""

    model: Model
    known: Tensor  # (N, D) features of length 1 of the held-out samples
    angles: ClassAngles | None
    centre: Tensor
    scale: Tensor

    def __call__(self, stored: Tensor, features: Tensor) -> Tensor:
        return self.sum_up(self.parts(stored, distances(features, self.known)))

    def parts(self, stored: Tensor, nearest: Tensor) -> Tensor:
        if self.angles is None:
            return nearest[:, None]
        return torch.stack([nearest, self.angles(self.model.test_view(stored.to(self.model.device)))], 1)

    def sum_up(self, parts: Tensor) -> Tensor:
        return ((parts - self.centre) / self.scale).sum(1)


def learn_feature_score(model: Model, stored: Tensor, features: Tensor) -> tuple[FeatureScore, Tensor]:
    """The score, and its values on the held-out samples themselves, each compared with the others."""
    model.method.eval()
    angles = ClassAngles(model.method) if isinstance(model.method, SLDA) else None
    plain = FeatureScore(model, features, angles, torch.zeros(1), torch.ones(1))
    parts = plain.parts(stored, distances(features, features, same=True))
    scale = parts.std(0) if len(parts) > 1 else torch.ones(parts.shape[1])
    score = FeatureScore(model, features, angles, parts.mean(0), scale.clamp(min=1e-9))
    return score, score.sum_up(parts)
