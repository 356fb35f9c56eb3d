"""Temperature scaling of the logits of `slda` and `ncm`, whose loss has no softmax.

Their logits are distances in hundreds of dimensions, so a softmax of them is nearly always 0 or 1. One factor
for all logits is fitted on held-out samples (Guo et al. 2017, https://arxiv.org/abs/1706.04599). The mean
probability of an answer then matches how often answers are right. No answer changes.
"""

from functools import reduce

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from strongreplay.methods.ncm import NCM
from strongreplay.models.held_out import HeldOut
from strongreplay.models.model import Model

RANGE = (-15.0, 5.0)  # of the logarithm of the factor


def calibrate(model: Model, *held_out: HeldOut) -> None:
    """Fit the factor of the method's logits, if it has one and there are held-out samples."""
    method = model.method
    if not isinstance(method, NCM) or not any(map(len, held_out)):
        return
    held = reduce(HeldOut.joined, held_out)
    columns = method.counts[: len(model.labels)].cpu().nonzero().flatten()  # classes with samples
    if len(columns) > 1:
        logits = model.scores(held.images).double()[:, columns]
        method.rescale(best_factor(logits, torch.searchsorted(columns, held.columns)))


def best_factor(logits: Tensor, labels: Tensor) -> float:
    """The factor with the smallest cross-entropy.

    Targets are slightly less than 1, by the rule of succession: samples that are all right do not show that
    every answer is.
    """
    count, classes = logits.shape
    right = (count + 1) / (count + 2)
    targets = torch.full_like(logits, (1 - right) / (classes - 1)).scatter_(1, labels[:, None], right)

    def loss(exponent: float) -> float:
        scaled: Tensor = (logits * torch.tensor(exponent).double().exp()).log_softmax(1)
        return -float((targets * scaled).sum(1).mean())

    found = minimize_scalar(loss, bounds=RANGE, method="bounded", options={"xatol": 1e-4})
    return float(torch.tensor(found.x).double().exp())
