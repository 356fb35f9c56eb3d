"""Streaming linear discriminant analysis (SLDA) on frozen features.

Paper: Hayes and Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis", 2020,
https://arxiv.org/abs/1909.01520
The body of the net is not trained. Kept are the mean of each class and one scatter matrix for all: no sample.
Both are merged batch by batch with the exact formula for the union of two sets (Chan et al. 1979), so they
equal those of all samples at once, in any order of arrival.
Difference from the paper: the covariance is shrunk towards a multiple of the identity with its own mean
variance, so the weight has no unit; the paper adds 1e-4 times the identity to features of a ResNet18. Without
a weight it is the one of the oracle approximating shrinkage (Chen et al. 2010), which follows from the
covariance and the number of samples: it is large when there are fewer samples than features.
"""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import one_hot

from strongreplay.methods.base import MethodConfig, Problem
from strongreplay.methods.ncm import NCM


class SLDAConfig(MethodConfig):
    shrinkage: float | None = Field(
        None, ge=0, le=1, description="weight of the identity in the covariance; none: from the data"
    )


class SLDA(NCM):
    scatter: Tensor  # (D, D) sum over samples of the outer product of their distance to the mean

    def __init__(self, net: nn.Module, problem: Problem, config: SLDAConfig | None = None) -> None:
        super().__init__(net, problem)
        self.config, size = config or SLDAConfig(), self.means.shape[1]
        self.register_buffer("scatter", torch.zeros(size, size))

    def count(self, features: Tensor, labels: Tensor) -> Tensor:
        members = one_hot(labels, len(self.counts)).to(features.dtype)  # (B, C)
        arriving, before, old_means = members.sum(0), self.counts.clone(), self.means.clone()
        own = members.t() @ features / arriving.clamp(min=1)[:, None]  # means of the batch
        distance = super().count(features, labels)
        inside = features - own[labels]
        between = (own - old_means) * (before * arriving / self.counts.clamp(min=1)).sqrt()[:, None]
        self.scatter += inside.t() @ inside + between.t() @ between
        return distance

    def covariance(self) -> Tensor:
        """The shrunk covariance within classes."""
        size, total = len(self.scatter), self.counts.sum()
        freedom = (total - (self.counts > 0).sum()).clamp(min=1)
        covariance = self.scatter / freedom
        variance = covariance.trace() / size
        weight = self.config.shrinkage
        share = oracle_share(covariance, freedom) if weight is None else torch.full_like(variance, weight)
        # One sample a class leaves no variance at all; then the classes differ by distance alone.
        floor = torch.finfo(variance.dtype).eps
        return (1 - share) * covariance + (share * variance).clamp(min=floor) * torch.eye(
            size, device=covariance.device
        )

    def solution(self) -> tuple[Tensor, Tensor]:
        factor = torch.linalg.cholesky(self.covariance().double().cpu())
        weight = torch.cholesky_solve(self.means.double().cpu().t(), factor).t().to(self.means)
        return weight, -(weight * self.means).sum(1) / 2


def oracle_share(covariance: Tensor, count: Tensor) -> Tensor:
    """The weight of the identity by the oracle approximating shrinkage, for `count` samples."""
    size = len(covariance)
    squares, mean = covariance.square().mean(), covariance.trace() / size
    above, below = squares + mean.square(), (count + 1) * (squares - mean.square() / size)
    return torch.where(below > above, above / below.clamp(min=1e-30), torch.ones_like(above))
