"""Out-of-distribution scores: how unlike the known samples a sample is; `drift.py` makes them one score.

`Energy` looks at the logits. `Statistics`, for a model that learns by SLDA on a frozen backbone, has two
parts: the squared Mahalanobis distance to the nearest class mean and the energy of the discriminants, both of
features that were brought to the usual length, because the length says little about the class. `Nearest`, for
every other model, is the cosine distance of features to the nearest held-out sample.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from strongreplay.methods.ncm import NCM
from strongreplay.methods.slda import SLDA
from strongreplay.models.embeddings import features_of
from strongreplay.models.model import Model


class Measure(Protocol):
    def __call__(self, stored: Tensor, logits: Tensor) -> Tensor:
        """(N, P) parts of a score, each higher for samples that are less like known ones."""


class Energy:
    """Energy of the logits before temperature scaling."""

    def __init__(self, model: Model) -> None:
        self.scale = float(model.method.scale) if isinstance(model.method, NCM) else 1.0

    def __call__(self, stored: Tensor, logits: Tensor) -> Tensor:
        return energy(logits / self.scale)[:, None]


class Statistics:
    """Distance and energy by the class means and the covariance of SLDA; `shift` and `unit` standardised."""

    def __init__(self, method: SLDA, shift: Tensor, unit: Tensor) -> None:
        counts, covariance = method.counts.double().cpu(), method.covariance().double().cpu()
        means, weights = method.means.double().cpu()[counts > 0], counts[counts > 0] / counts.sum()
        squares = (means * unit + shift).square().sum(1) + (covariance.diagonal() * unit.square()).sum()
        self.shift, self.unit, self.length = shift, unit, weights @ squares.sqrt()
        self.factor: Tensor = torch.linalg.cholesky(covariance)
        self.centre = weights @ means
        self.means = self.whiten(means)

    def whiten(self, features: Tensor) -> Tensor:
        found: Tensor = torch.linalg.solve_triangular(self.factor, (features - self.centre).T, upper=False)
        return found.T

    def __call__(self, stored: Tensor, logits: Tensor) -> Tensor:
        usual = normalize(stored.double().cpu(), dim=1) * self.length
        found = self.whiten((usual - self.shift) / self.unit)
        discriminants = found @ self.means.T - self.means.square().sum(1) / 2
        distances = found.square().sum(1) - 2 * discriminants.max(1).values
        return torch.stack([distances, energy(discriminants)], 1)


class Nearest:
    def __init__(self, model: Model, known: Tensor) -> None:
        self.model, self.known = model, known

    def __call__(self, stored: Tensor, logits: Tensor) -> Tensor:
        return distances(features_of(self.model, stored), self.known)[:, None]


def statistics_of(model: Model) -> Statistics | None:
    """None unless the model learns by SLDA on a frozen backbone."""
    if model.reader is None or not isinstance(model.method, SLDA):
        return None
    size, is_shifted = model.stored_shape[0], model.settings.learner.normalise
    shift, unit = (model.mean, model.std) if is_shifted else ([0.0] * size, [1.0] * size)
    return Statistics(model.method, torch.tensor(shift).double(), torch.tensor(unit).double())


def energy(logits: Tensor) -> Tensor:
    """(N,) energy of logits: low where the net is sure of some class."""
    return -logits.double().logsumexp(1)


def distances(features: Tensor, known: Tensor, *, same: bool = False) -> Tensor:
    """(N,) cosine distance to the nearest known sample; with `same`, of each known one to the others."""
    likeness = features @ known.T
    if same:
        likeness.fill_diagonal_(-1.0)
    return (1 - likeness.max(1).values).double()
