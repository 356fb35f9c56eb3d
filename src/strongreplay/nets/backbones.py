"""Backbones: bodies that were trained before, and how a kept model builds one again.

`efficientnet-lite0` comes with its extra, `timm:NAME` from timm with a file of weights, `FILE.onnx` from any
framework, `mine.py:factory` from a user's code. Side and normalisation of the images come with the backbone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from strongreplay.errors import ConfigError
from strongreplay.extensions import is_path
from strongreplay.nets.heads import ask, body_of
from strongreplay.nets.onnx_body import OnnxBody, moments_of, read_onnx
from strongreplay.nets.published import PUBLISHED, published_weights
from strongreplay.nets.vit_weights import read_file, read_tensors
from strongreplay.storage import files

TIMM, ONNX = "timm:", ".onnx"
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation that most nets were trained with
SIDE = 224  # where a backbone names none


@dataclass(frozen=True)
class Backbone:
    """A body and the images it takes. All but the body is written into the state, as `about`."""

    body: nn.Module
    name: str  # as typed; a file with its whole path
    shape: tuple[int, ...]
    mean: tuple[float, ...]  # of each channel in [0, 1]
    std: tuple[float, ...]
    num_features: int
    source_hash: str | None = None  # of a user's file
    head: str | None = None  # the layer that a user named as the head
    note: str | None = None
    probe: Tensor | None = None  # the features of two drawn images, by which edited code is judged
    found_hash: str | None = None  # of a user's file, if it was edited since

    @property
    def about(self) -> dict[str, Any]:
        return self.described | ({} if self.probe is None else {"probe": self.probe})

    @property
    def described(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": list(self.shape),
            "mean": list(self.mean),
            "std": list(self.std),
            "num_features": self.num_features,
            "source_hash": self.source_hash,
            "head": self.head,
        }

    @property
    def key(self) -> str:
        """Names the features: another body, code, weights or side give another key."""
        tensors = [files.sha256(value.cpu().numpy().tobytes()) for value in self.body.state_dict().values()]
        code = {"source_hash": self.found_hash or self.source_hash}
        return files.sha256(json.dumps([self.described | code, tensors]).encode())[:16]


def is_backbone(name: str) -> bool:
    return name in PUBLISHED or name.startswith(TIMM) or name.lower().endswith(ONNX) or is_path(name)


def open_backbone(
    name: str, *, weights: str | None = None, side: int | None = None, channels: int | None = None,
    head: str | None = None, seed: int = 0,
) -> Backbone:  # fmt: skip
    """A backbone by name; `side` and `channels` override its own where it takes others."""
    if weights is not None and not name.startswith(TIMM):
        raise ConfigError(f"--weights belongs to timm:NAME, and {name} has its own; leave it out")
    if name in PUBLISHED:
        row = PUBLISHED[name]
        body = row.build()
        body.load_state_dict(published_weights(name))
        shape = (3, side or row.side, side or row.side)
        return Backbone(body.eval(), name, shape, row.mean, row.std, width_of(body, shape, name))
    if name.startswith(TIMM):
        return open_timm(name, weights, side)
    if name.lower().endswith(ONNX):
        return open_onnx(Path(name).expanduser().absolute(), side)
    return open_file(name, side, channels or 3, head, seed)


def rebuild_backbone(about: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None) -> Backbone:
    """The backbone of a state; without `weights` its body has those of a new net."""
    name, shape = str(about["name"]), tuple(about["shape"])
    found = source_hash = about["source_hash"]
    if name in PUBLISHED:
        body: nn.Module = PUBLISHED[name].build()
    elif name.startswith(TIMM):
        body = timm_net(name)
    elif name.lower().endswith(ONNX):
        body = OnnxBody()
    else:
        if not (file := Path(name.rpartition(":")[0])).is_file():
            raise ConfigError(
                f"net {name}: the model is built by {file}, which is not there; put it back there"
            )
        body, _, found = user_body(name, shape, about["head"], 0)
    if weights is not None:
        try:
            body.load_state_dict(dict(weights))
        except RuntimeError as error:
            reason = str(error).partition("\n")[2].strip() or str(error)
            raise ConfigError(
                f"net {name}: the stored weights do not fit its code ({reason[:200]})"
            ) from None
    made = Backbone(
        body.eval(), name, shape, tuple(about["mean"]), tuple(about["std"]), about["num_features"],
        source_hash, about["head"], probe=about.get("probe"),
    )  # fmt: skip
    return made if found == source_hash else with_edited_code(made, found, is_whole=weights is not None)


def with_edited_code(made: Backbone, found: str | None, is_whole: bool) -> Backbone:
    """The backbone with a note that its file was edited; an error if the features are others now."""
    edited = (
        f"{made.name.rpartition(':')[0]} was edited since the model was made (source {made.source_hash}, now "
        f"{found})"
    )
    if is_whole and made.probe is not None:
        now = probe(made.body, made.shape, made.name)
        if now.shape != made.probe.shape or not torch.allclose(now, made.probe, rtol=1e-3, atol=1e-4):
            raise ConfigError(
                f"{edited}, and gives other features now; the model knows those of before: put the old code "
                "back, or start a new model"
            )
    note = f"{edited}; the stored weights are used with the new code"
    return replace(made, note=note, found_hash=found)


def probe(body: nn.Module, shape: tuple[int, ...], name: str) -> Tensor:
    """The features of two drawn images."""
    return ask(body, shape, f"net {name}", torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))


def width_of(body: nn.Module, shape: tuple[int, ...], name: str) -> int:
    features = ask(body, shape, name)
    if features.dim() != 2:
        raise ConfigError(f"net {name}: must answer with (B, D) features, got {tuple(features.shape)}")
    return features.shape[1]


# timm


def timm_net(name: str) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise ConfigError(f"net {name}: timm cannot be imported ({error}); run: pip install timm") from None
    try:
        net: nn.Module = timm.create_model(name.removeprefix(TIMM), pretrained=False, num_classes=0)
    except Exception as error:
        raise ConfigError(f"net {name}: timm does not make it ({error}); see timm.list_models()") from None
    return net


def open_timm(name: str, weights: str | None, side: int | None) -> Backbone:
    if weights is None:
        raise ConfigError(f"net {name}: must come with its weights; give --weights FILE.safetensors")
    net = timm_net(name)
    about: dict[str, Any] = getattr(net, "default_cfg", None) or {}
    tensors, own = read_tensors(weights, read_file(weights)), net.state_dict()
    heads = about.get("classifier") or ()
    prefixes = tuple(f"{head}." for head in ([heads] if isinstance(heads, str) else heads))
    kept = {key: value for key, value in tensors.items() if not (prefixes and key.startswith(prefixes))}
    wrong = [key for key, value in kept.items() if key in own and own[key].shape != value.shape]
    if not wrong:
        faults = net.load_state_dict(kept, strict=False)
        wrong = [*faults.missing_keys, *faults.unexpected_keys]
    if wrong:
        raise ConfigError(
            f"net.weights={weights}: {len(wrong)} tensors do not fit {name}, such as {wrong[0]}; "
            "give its own weights"
        )
    size = side or (about.get("input_size") or (3, SIDE, SIDE))[1]
    shape = (3, size, size)
    mean, std = tuple(about.get("mean") or IMAGENET[0]), tuple(about.get("std") or IMAGENET[1])
    return Backbone(net.eval(), name, shape, mean, std, width_of(net.eval(), shape, name))


# ONNX


def open_onnx(path: Path, side: int | None) -> Backbone:
    body, note = read_onnx(path)
    _, channels, height, width = body.input_shape
    if height != width:
        raise ConfigError(f"net {path}: images must be square, the graph takes {width} x {height}")
    if height is not None and side not in (None, height):
        raise ConfigError(f"net {path}: takes images of side {height}, got --side {side}; leave it out")
    size, count = height or side or SIDE, channels or 3
    mean, std = moments_of(body.properties()) or tuple([*each[:count]] for each in IMAGENET)
    shape = (count, size, size)
    features, answer = width_of(body, shape, str(path)), tuple(body.answer(torch.zeros(1, *shape)).shape)
    if features != answer[1]:  # a pooled map of 1 x 1 pixels is flattened
        raise ConfigError(
            f"net {path}: must answer with (B, D) features, got {answer}; export it with average pooling"
        )
    return Backbone(body, str(path), shape, tuple(mean), tuple(std), features, note=note)


# A user's file


def open_file(name: str, side: int | None, channels: int, head: str | None, seed: int) -> Backbone:
    """The net of `mine.py:factory`; it may have attributes `input_side`, `mean` and `std`."""
    file, _, factory = name.rpartition(":")
    place = f"{Path(file).expanduser().absolute()}:{factory}"
    size = side or SIDE
    body, net, source_hash = user_body(place, (channels, size, size), head, seed)
    own = getattr(net, "input_side", None)
    if own is not None and side is None and own != size:
        size = int(own)
        body, net, source_hash = user_body(place, (channels, size, size), head, seed)
    shape = (channels, size, size)
    mean, std = (
        tuple(getattr(net, key, each[:channels])) for key, each in zip(("mean", "std"), IMAGENET, strict=True)
    )
    features = width_of(body, shape, name)
    seen = probe(body, shape, name)
    return Backbone(body.eval(), place, shape, mean, std, features, source_hash, head, probe=seen)


def user_body(
    name: str, shape: tuple[int, ...], head: str | None, seed: int
) -> tuple[nn.Module, nn.Module, str | None]:
    """The body of a user's net, the net itself, and the hash of its source."""
    from strongreplay.nets import make_net, net_row

    num_classes = 1000
    net = make_net(name, shape, num_classes, torch.Generator().manual_seed(seed))
    body, _ = body_of(net, shape, f"net {name}", num_classes, head)
    return body, net, net_row(name).source_hash
