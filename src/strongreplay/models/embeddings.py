"""Embeddings, by which samples are compared: features of a frozen backbone or of the body of the net."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from strongreplay.methods.base import evaluation_mode
from strongreplay.models.correct import answering_classifier
from strongreplay.models.model import Model

BATCH_SIZE = 500


def embed(model: Model, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Images as stored, their logits and features; the stored form is computed once: a backbone is slow."""
    stored = model.stored(images)
    return stored, model.scores(stored), features_of(model, stored)


@torch.no_grad()
def features_of(model: Model, images: Tensor, on_batch: Callable[[int], None] = lambda count: None) -> Tensor:
    """(N, D) features of length 1, on the host; the logits take their place if the net shows no features."""
    if model.reader is not None:
        return normalize(model.stored(images), dim=1)
    compute = getattr(answering_classifier(model), "features", None)
    if not callable(compute) or isinstance(compute, nn.Module):  # torchvision's `features` is a module
        return normalize(model.scores(images), dim=1)
    found, view = [torch.empty(0)], model.test_view
    with evaluation_mode(model.method):
        for batch in images.split(BATCH_SIZE):
            found.append(compute(view(batch.to(model.device))).flatten(1).cpu())
            on_batch(len(batch))
    return normalize(torch.cat(found[1:] or found), dim=1)
