"""The digests by which a model knows a photo: of its pixels as the model keeps them, or of its features."""

from collections.abc import Sequence
from pathlib import Path

import torch

from strongreplay.data.image_files import read_files
from strongreplay.data.user_data import digests
from strongreplay.models.check import refuses_misfits
from strongreplay.models.duplicates import as_kept
from strongreplay.models.features import FOLDER, FeatureCache, FeatureReader
from strongreplay.models.memory_view import read_parts
from strongreplay.models.parts import FROZEN
from strongreplay.models.settings import stored_settings
from strongreplay.models.store import Store
from strongreplay.nets.backbones import rebuild_backbone


@refuses_misfits
def photo_digests(store: Store, photos: Sequence[Path]) -> frozenset[str]:
    """The digests that the samples of these files have in the model.

    Features are taken from the cache and also computed, because they are rounded by the size of a block.
    """
    if not photos:
        return frozenset()
    parts = read_parts(store, None, ("model", FROZEN))[1]
    settings, shape = stored_settings(parts["model"]["plan"]), tuple(parts["model"]["shape"])
    images = torch.cat([*read_files(photos, shape)])
    if not settings.net.is_frozen:
        return frozenset(digests(as_kept(images, settings.learner.store)))
    backbone = rebuild_backbone(parts["model"]["backbone"], parts[FROZEN])
    reader, cache = (
        FeatureReader(backbone, torch.device("cpu")),
        FeatureCache(store.folder / FOLDER, backbone.key),
    )
    known = [cache.find(name) for name in digests(images)]
    found = [features[None] for features in known if features is not None]
    for image in images.split(1):
        found += [reader.compute(image), reader.compute(torch.cat([image, image]))[:1]]
    return frozenset(digests(torch.cat(found)))
