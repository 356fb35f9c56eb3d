"""Stored logits of a memory are completed when the head has grown since.

A sample's logits are as wide as the head was when the sample was last learnt; later columns are NaN. As long
as they are, consistency does not hold the classes of these columns low on this sample, as it does with a head
that has all classes from the start. After an update has trained the new columns, the net's own outputs on the
sample fill them.
"""

import torch

from strongreplay.methods.base import predict_all
from strongreplay.models.model import Model


@torch.no_grad()
def complete_logits(model: Model) -> None:
    """Replace NaN in stored logits by what the net answers now, without augmentation."""
    memory = model.memory
    if not len(memory) or not memory.ragged or "logits" not in memory.row_type._fields:
        return
    rows = memory.rows
    gaps = rows.logits.isnan().any(1).nonzero().flatten()
    if len(gaps):
        known, images = rows.logits[gaps], rows.images[gaps]
        answers = predict_all(model.method.net, images, model.test_view).to(known.device)
        rows.logits[gaps] = torch.where(known.isnan(), answers[:, : known.shape[1]], known)
    memory.ragged = False
