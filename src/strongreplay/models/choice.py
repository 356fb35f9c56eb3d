"""Which net, side and method a new model gets once the first images are known, and one line that says why."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from strongreplay.data.convert import RequiredForm
from strongreplay.errors import ConfigError
from strongreplay.methods import method_row
from strongreplay.models.features import FeatureCache, FeatureReader
from strongreplay.models.settings import (
    CLOSED_FORM,
    NONE_IS_OFF,
    KeptNetConfig,
    check_used,
    make_settings,
)
from strongreplay.nets.backbones import IMAGENET, ONNX, Backbone, is_backbone, open_backbone
from strongreplay.nets.published import EXTRA, is_installed

PHOTO_SIDE = 64  # pixels; from here on a backbone is chosen if no net is named
LARGEST_FROM_SCRATCH = 128  # pixels; a step on a CPU takes seconds above
LARGEST = 1024  # pixels; a block of larger images takes gigabytes in a backbone
USUAL = "efficientnet-lite0"
WIDEST_SLDA = 8192  # features; their covariance takes 256 MB


class NetChoice:
    """Called with the form of the first images; then it has the settings, and the backbone if one is used."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        device: torch.device,
        tell: Callable[[str], None] = lambda text: None,
        cache: Path | None = None,
        side: int | None = None,
        typed: Mapping[str, Any] | None = None,
    ) -> None:
        """`typed`: the settings that the user gave, if others are among them."""
        if side is not None and side > LARGEST:
            raise ConfigError(f"--side must be at most {LARGEST:,} pixels, got {side:,}; give --side 224")
        # None means "choose", except for settings that None turns off.
        self.settings = {
            key: value for key, value in settings.items() if value is not None or key in NONE_IS_OFF
        }
        if self.settings.get("learner.method") == "auto":
            del self.settings["learner.method"]
        self.device, self.tell, self.cache = device, tell, cache
        self.typed = settings if typed is None else typed
        self.backbone: Backbone | None = None
        self.reader: FeatureReader | None = None
        self.named = str(self.settings.get("net.name", "auto"))
        if self.named == "auto" and (method := self.settings.get("learner.method")):
            self.named = method_row(method).net or "auto"

    def __call__(self, form: RequiredForm, side: int, channels: int) -> RequiredForm:
        name, method = self.named, self.settings.get("learner.method")
        if name == "auto" and side >= PHOTO_SIDE and "net.width" not in self.settings:
            if is_installed(USUAL):
                name = USUAL
            else:
                self.tell(
                    f"photos of {side} pixels are shrunk and learnt from scratch; with a backbone trained on "
                    f"ImageNet the answers would be far better: {EXTRA}"
                )
        if not is_backbone(name):
            check_side(name, form.side, self.device)
            return form
        backbone = open_backbone(
            name,
            weights=self.settings.get("net.weights"),
            side=form.side,
            channels=form.channels or (channels if name not in ("auto", USUAL) else 3),
            head=self.settings.get("net.head"),
            seed=int(self.settings.get("learner.seed", 0)),
        )
        self.backbone = with_moments(backbone, make_settings(self.settings | {"net.name": name}).net)
        tune = tuned_by(name, method, self.settings.get("net.tune"))
        method = method or ("ser" if tune != "none" else "slda")
        check_width(method, self.backbone.num_features)
        self.settings |= {"net.name": self.backbone.name, "net.tune": tune, "learner.method": method}
        channels, size = self.backbone.shape[:2]
        if form.channels not in (None, channels):
            raise ConfigError(f"{name} takes images of {channels} channels, got --channels {form.channels}")
        check_used(self.typed, make_settings(self.settings), tune != "all")  # before features are computed
        self.tell(self.describe(name, side, method, tune))
        form = form._replace(kind="images", side=size, channels=channels)
        if tune == "all":
            return form
        cache = FeatureCache(self.cache, self.backbone.key) if self.cache else None
        self.reader = FeatureReader(self.backbone, self.device, cache)
        self.reader.tell = self.tell
        return form._replace(transform=self.reader)

    def describe(self, name: str, side: int, method: str, tune: str) -> str:
        assert self.backbone is not None
        size, why = self.backbone.shape[1], f"because the photos have {side} pixels"
        chosen = f"{Path(name).name} ({size} px{', frozen' if tune != 'all' else ''}) with {method}"
        notes = [self.backbone.note] if self.backbone.note else []
        if name.lower().endswith(ONNX):
            notes.append(f"{self.backbone.num_features:,} features")
            usual = tuple(each[: self.backbone.shape[0]] for each in IMAGENET)
            if (self.backbone.mean, self.backbone.std) == usual:
                notes.append("images with ImageNet's mean and deviation (others: net.mean, net.std)")
        return "; ".join([f"net and method: {chosen}{f', {why}' if self.named == 'auto' else ''}", *notes])


def with_moments(backbone: Backbone, net: KeptNetConfig) -> Backbone:
    """The backbone with other mean and deviation of images, if they are set."""
    if net.mean is None or net.std is None:
        return backbone
    channels = backbone.shape[0]
    if not len(net.mean) == len(net.std) == channels:
        raise ConfigError(
            f"net.mean and net.std must have a value for each channel, {channels}, got {len(net.mean)} and "
            f"{len(net.std)}"
        )
    return replace(backbone, mean=net.mean, std=net.std)


def tuned_by(name: str, method: str | None, tune: str | None) -> str:
    """What is trained: none (the head is computed), the head, or all."""
    if tune is None:
        if method is None:
            tune = "all" if ".py:" in name else "none"
        else:
            tune = "none" if method in CLOSED_FORM else ("all" if ".py:" in name else "head")
    if tune == "none" and method not in (None, *CLOSED_FORM):
        raise ConfigError(
            f"--tune none trains nothing, and {method} trains a head; give --tune head or --method slda"
        )
    if tune != "none" and method in CLOSED_FORM:
        raise ConfigError(
            f"--tune {tune} trains, and {method} computes its head from frozen features; leave it out"
        )
    if tune == "all" and name.lower().endswith(".onnx"):
        raise ConfigError("--tune all: an ONNX graph can't be trained; give --tune head, or none")
    return tune


def check_width(method: str, num_features: int) -> None:
    if method == "slda" and num_features > WIDEST_SLDA:
        raise ConfigError(
            f"slda takes at most {WIDEST_SLDA:,} features, whose covariance is 256 MB, got {num_features:,}; "
            "give --method ncm, or a net with fewer"
        )


def check_side(name: str, side: int | None, device: torch.device) -> None:
    """Refuse to learn large images from scratch on a CPU."""
    if side is not None and side > LARGEST_FROM_SCRATCH and device.type == "cpu":
        raise ConfigError(
            f"--side {side} from scratch takes seconds a step on a CPU (13.7 s at 224 px); give --side 64, "
            f"or use a backbone: --net {USUAL} ({EXTRA})"
        )
