"""Files of weights for `vit`: read without running code, their form found out, names and shapes checked."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor
from torch.nn.functional import interpolate

from strongreplay.errors import ConfigError
from strongreplay.nets.vit import Form, ViTBody, usual_heads
from strongreplay.storage import files

MOST_BYTES = 1 << 33
PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".npz")
# Parameters that every ViT has, and their dimensions
NEEDED = {"patch_embed.proj.weight": 4, "pos_embed": 3, "blocks.0.mlp.fc1.weight": 2}
SHOWN = 4  # names in a message
HEADS = ("head.", "head_dist.")  # a classifier's own, left out


def read_file(file: str) -> bytes:
    path = Path(file).expanduser()
    if path.suffix in PICKLES:
        raise ConfigError(
            f"net.weights={file}: {path.suffix} files can run code and are not read; convert it once where "
            f"you trust it: read its tensors with torch.load and weights_only=True, and write them with "
            f"safetensors.torch.save_file(tensors, '{path.with_suffix('.safetensors').name}')"
        )
    if path.suffix != ".safetensors" or not path.is_file():
        what = "no such file" if path.suffix == ".safetensors" else f"a file of kind '{path.suffix}'"
        raise ConfigError(f"net.weights must be a .safetensors file, got {file}: {what}; give its path")
    return files.read_bytes(path, MOST_BYTES, "give another file", follow=True)


def hash_of_weights(file: str) -> str:
    """The SHA-256 of a file of weights; computed once while the file does not change."""
    try:
        found = Path(file).expanduser().stat()
    except OSError:
        found = None
    return _hash_of(file, found and (found.st_size, found.st_mtime_ns))


@lru_cache(16)
def _hash_of(file: str, seen: tuple[int, int] | None) -> str:
    return files.sha256(read_file(file))


def read_weights(file: str, expected: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file in float32, without the head; with `expected`, its SHA-256 must be this."""
    data = read_file(file)
    if expected is not None and files.sha256(data) != expected:
        raise ConfigError(
            f"net.weights={file}: the file has changed since this run was made (SHA-256 {expected[:16]}...); "
            "put it back, or start a new run"
        )
    tensors = read_tensors(file, data)
    for name, value in tensors.items():
        if not value.is_floating_point():
            raise ConfigError(f"net.weights={file}: {name} must have floating point, got {value.dtype}")
    return {name: value.float() for name, value in tensors.items() if not name.startswith(HEADS)}


def read_tensors(file: str, data: bytes) -> dict[str, Tensor]:
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise ConfigError(
            f"net.weights={file}: not a whole safetensors file ({error}); give another file"
        ) from None


def form_of(tensors: Mapping[str, Tensor], asked: Mapping[str, int | None], file: str) -> Form:
    """The form of the net that the tensors belong to; sizes that were asked for must agree with it."""
    if lacking := [name for name in NEEDED if name not in tensors]:
        raise ConfigError(
            f"net.weights={file}: not the weights of a ViT by timm's names; lacks {listed(lacking)}, has "
            f"{listed(tensors)}"
        )
    for name, dims in (NEEDED | {"reg_token": 3}).items():
        if name in tensors and (tensors[name].dim() != dims or 0 in tensors[name].shape):
            got = tuple(tensors[name].shape)
            raise ConfigError(f"net.weights={file}: {name} must have {dims} dimensions, got shape {got}")
    first = tensors["patch_embed.proj.weight"]
    if first.shape[2] != first.shape[3]:
        raise ConfigError(f"net.weights={file}: patches must be square, got weights {tuple(first.shape)}")
    width, patch = first.shape[0], first.shape[2]
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    for key, value in (("width", width), ("depth", depth), ("patch", patch)):
        if asked[key] not in (None, value):
            raise ConfigError(
                f"net.weights={file}: has {key} {value}, got {asked[key]}; leave net.{key} and net.size out"
            )
    registers = tensors["reg_token"].shape[1] if "reg_token" in tensors else 0
    prefix, count = registers + ("cls_token" in tensors), tensors["pos_embed"].shape[1]
    return Form(
        width=width,
        depth=depth,
        heads=asked["heads"] or usual_heads(width),
        patch=patch,
        hidden=len(tensors["blocks.0.mlp.fc1.weight"]),
        registers=registers,
        has_class_token="cls_token" in tensors,
        places_prefix=is_square(count - prefix) and prefix > 0,
        layer_scale="blocks.0.ls1.gamma" in tensors,
        qk_norm="blocks.0.attn.q_norm.weight" in tensors,
        qkv_bias="blocks.0.attn.qkv.bias" in tensors,
        averages="fc_norm.weight" in tensors,
    )


def is_square(count: int) -> bool:
    return count > 0 and round(count**0.5) ** 2 == count


def fill_in(body: ViTBody, tensors: Mapping[str, Tensor], file: str) -> None:
    """Load the tensors by name; positions are resized to the grid of the images."""
    own, given = body.state_dict(), dict(tensors)
    missing = [name for name in own if name not in given]
    unknown = [name for name in given if name not in own]
    if missing or unknown:
        parts = [("lacks", missing), ("has unknown", unknown)]
        faults = " and ".join(f"{word} {listed(names)}" for word, names in parts if names)
        raise ConfigError(f"net.weights={file}: {faults}; only plain ViTs by timm's names are read")
    given["pos_embed"] = resized(given["pos_embed"], body, file)
    for name, value in given.items():
        if value.shape != own[name].shape:
            hint = "; give images with as many channels" if name == "patch_embed.proj.weight" else ""
            raise ConfigError(
                f"net.weights={file}: {name} must be {tuple(own[name].shape)}, got {tuple(value.shape)}{hint}"
            )
    body.load_state_dict(given)


def resized(positions: Tensor, body: ViTBody, file: str) -> Tensor:
    """Positions for the grid of the images, bicubic; those of class token and registers stay as they are."""
    prefix = body.form.num_prefix if body.form.places_prefix else 0
    side = round(max(positions.shape[1] - prefix, 0) ** 0.5)
    if positions.dim() != 3 or side * side != positions.shape[1] - prefix:
        raise ConfigError(f"net.weights={file}: pos_embed {tuple(positions.shape)} is no square grid")
    if (side, side) == body.grid:
        return positions
    grid = positions[:, prefix:].view(1, side, side, -1).permute(0, 3, 1, 2)
    grid = interpolate(grid, body.grid, mode="bicubic", antialias=True)
    return torch.cat([positions[:, :prefix], grid.flatten(2).transpose(1, 2)], 1)


def listed(names: Mapping[str, Tensor] | list[str]) -> str:
    """The first names, and how many more there are."""
    shown, more = list(names)[:SHOWN], len(names) - SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
