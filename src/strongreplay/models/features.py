"""Features of a frozen backbone: computed once for each image, block by block, and kept in a cache.

The cache is a folder of a kept model. Each reading of data adds a file with the digests of the images and
their features, which later readings map into memory. The oldest files go when there are more bytes than its
limit, and all go when a sample is forgotten.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from strongreplay.data.read_options import ignore
from strongreplay.data.rows import BLOCK_SIZE
from strongreplay.data.user_data import Chunk, digests
from strongreplay.data.views import normalise
from strongreplay.errors import DataError
from strongreplay.nets.backbones import Backbone
from strongreplay.storage import files

FOLDER = "features"
NAME = re.compile(r"f([0-9]{6,9})\.safetensors")
CACHE_BYTES = 1 << 26  # 13,000 images with 1,280 features


class FeatureReader:
    """From images as stored to features; equal images give equal bits, whatever comes with them."""

    def __init__(self, backbone: Backbone, device: torch.device, cache: "FeatureCache | None" = None) -> None:
        self.backbone, self.device, self.cache = backbone, device, cache
        self.view = normalise(backbone.mean, backbone.std)
        self.body = backbone.body.to(device).eval().requires_grad_(False)
        self.num_computed = self.num_found = self.num_expected = 0
        self.seconds = self.began = 0.0
        self.tell: Callable[[str], None] = ignore

    def expect(self, count: int) -> None:
        """So many images come now; how long that takes is told after the first block."""
        self.num_expected, self.began = count, time.perf_counter()

    def __call__(self, images: Tensor) -> Tensor:
        if self.cache is None:
            return self.compute(images)
        names = digests(images)
        known = [self.cache.find(name) for name in names]
        missing = [row for row, found in enumerate(known) if found is None]
        if missing:
            for row, features in zip(missing, self.compute(images[missing]), strict=True):
                known[row] = features
                self.cache.add(names[row], features)
        self.num_found += len(images) - len(missing)
        return torch.stack([features for features in known if features is not None])

    @torch.inference_mode()
    def compute(self, images: Tensor) -> Tensor:
        """On the host. Blocks are filled up with black images: another size of block rounds differently."""
        began, found = time.perf_counter(), []
        for block in images.split(BLOCK_SIZE):
            count = len(block)
            if 1 < count < BLOCK_SIZE:
                block = torch.cat([block, block.new_zeros((BLOCK_SIZE - count, *block.shape[1:]))])
            found.append(self.body(self.view(block.to(self.device)))[:count].float().cpu())
            if self.num_expected > count:
                seconds = (time.perf_counter() - self.began) * self.num_expected / count
                about = "at most" if self.cache and self.cache.known else "about"
                self.tell(f"features of {self.num_expected:,} photos: {about} {seconds:.0f} s")
            self.num_expected = 0
        self.num_computed += len(images)
        self.seconds += time.perf_counter() - began
        return torch.cat(found).clone()

    def report(self) -> str | None:
        """What was computed, and how fast; none if nothing was."""
        if not self.num_computed:
            return f"features of {self.num_found} images were in the cache" if self.num_found else None
        rate = self.num_computed / max(self.seconds, 1e-9)
        found = f", {self.num_found} were in the cache" if self.num_found else ""
        made = f"features of {self.num_computed} images by {Path(self.backbone.name).name}"
        return f"{made} in {self.seconds:.1f} s, {rate:.0f} a second{found}"


def check_finite(chunk: Chunk, backbone: Backbone) -> None:
    """Raise a DataError that names an image whose features are not finite."""
    if broken := (~chunk.inputs.isfinite().all(1)).nonzero().flatten().tolist():
        more = f" and for {len(broken) - 1} more images" if len(broken) > 1 else ""
        raise DataError(
            f"{chunk.sources[broken[0]]}: the backbone {Path(backbone.name).name} answers with NaN or "
            f"infinite features for it{more}; take them out, or use another backbone"
        )


class FeatureCache:
    """Features by digest, in the files of a folder; only files of the same backbone are used."""

    def __init__(self, folder: Path, key: str, limit: int = CACHE_BYTES) -> None:
        self.folder, self.key, self.limit = folder, key, limit
        self.known: dict[str, Tensor] = {}
        self.fresh: dict[str, Tensor] = {}
        for path in cached_files(folder):
            try:
                parts = load_file(path)  # mapped into memory, not read
                if bytes(parts["key"].tolist()).decode() == key:
                    names = [bytes(row).hex() for row in parts["digests"].numpy()]
                    self.known |= dict(zip(names, parts["features"], strict=True))
            except Exception:  # ignore a damaged cache file
                continue

    def find(self, name: str) -> Tensor | None:
        return self.fresh.get(name, self.known.get(name))

    def add(self, name: str, features: Tensor) -> None:
        self.fresh[name] = features

    def write(self) -> None:
        """Write what was added, as far as there is room, and remove the oldest files beyond the limit."""
        if not self.fresh:
            return
        row_bytes = next(iter(self.fresh.values())).nbytes + 32
        names = list(self.fresh)[: self.limit // row_bytes]
        if not names:
            return
        kept = cached_files(self.folder)
        number = 1 + max((int(NAME.fullmatch(path.name)[1]) for path in kept), default=0)  # type: ignore[index]
        data = save(
            {
                "key": torch.tensor(list(self.key.encode()), dtype=torch.uint8),
                "digests": torch.tensor([list(bytes.fromhex(name)) for name in names], dtype=torch.uint8),
                "features": torch.stack([self.fresh[name] for name in names]),
            }
        )
        room = self.limit - len(names) * row_bytes
        for path in reversed(kept):
            room -= path.stat().st_size
            if room < 0:
                files.remove(path)
        files.write_bytes(self.folder / f"f{number:06d}.safetensors", data)
        self.known, self.fresh = self.known | self.fresh, {}


def cached_files(folder: Path) -> list[Path]:
    """The oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if NAME.fullmatch(path.name))


def forget_features(folder: Path) -> bool:
    """Remove the whole cache, if there is one; rows are not matched to pictures."""
    if not (folder / FOLDER).is_dir():
        return False
    files.remove(folder / FOLDER)
    files.sync_folder(folder)
    return True
