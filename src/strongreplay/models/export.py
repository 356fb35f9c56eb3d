"""Export a net as one ONNX file, with everything between an image and an answer inside.

The file takes RGB images of any size (uint8), or raw features, in batches of any size; it returns logits and
probabilities. It is renamed to its final name only after onnxruntime agrees with PyTorch to 1e-4. A short
text beside it says what goes in and what comes out.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from torch import Tensor, nn

from strongreplay import __version__
from strongreplay.errors import ConfigError, RunError
from strongreplay.models.export_backbone import build_on_graph
from strongreplay.models.export_check import check_logits, checked_samples, compare, cycle, random_samples
from strongreplay.models.export_graph import Deployed, build_model, with_plain_layers, write_model
from strongreplay.models.export_input import PIXELS, with_preparation
from strongreplay.models.export_usage import (
    FEATURES,
    describe_input,
    describe_outputs,
    text_beside,
    write_usage,
)
from strongreplay.nets.onnx_body import OnnxBody
from strongreplay.storage import files

PACKAGES = "onnx", "onnxscript", "onnxruntime"
ENDING = ".onnx"
MAX_BYTES = 2**31 - 2**24  # protobuf allows 2 GiB; a small part is not weights


@dataclass(frozen=True, slots=True)
class Exported:
    """The written file, and the largest difference of its logits to PyTorch."""

    path: Path
    bytes: int
    max_difference: float
    num_checked: int
    opset: int


def export_onnx(
    net: nn.Module,
    path: Path,
    *,
    shape: tuple[int, ...],
    mean: Sequence[float],
    std: Sequence[float],
    labels: Sequence[str | int],
    images: Tensor | None = None,
    about: Mapping[str, str] = {},
) -> Exported:
    """Write the net to `path`; an error leaves no file. `images` are used for the comparison with PyTorch."""
    require_packages()
    check_settings(net, path, shape, mean, std, labels)
    samples = random_samples(shape, mean, std) if images is None or not len(images) else images
    samples = checked_samples(path, samples, shape)
    two = cycle(samples, 2)  # the exporter would treat a batch size of 1 as a constant
    reference = Deployed(deepcopy(net), shape, mean, std).cpu().eval()
    check_logits(path, reference, two, len(labels))
    with beside(path) as (temporary, file):
        plain = deepcopy(reference)
        with_plain_layers(plain)
        is_graph = isinstance(getattr(plain.net, "body", None), OnnxBody)
        build = build_on_graph if is_graph else build_model
        model = build(path, plain, two, PIXELS if len(shape) == 3 else FEATURES)
        if len(shape) == 3:
            model = with_preparation(model, shape[0], shape[1])
        properties = {
            "labels": json.dumps(list(labels), default=int),  # for integers of numpy
            "shape": json.dumps(list(shape)),
            "mean": json.dumps([float(value) for value in mean]),
            "std": json.dumps([float(value) for value in std]),
            "input": json.dumps(describe_input(shape)),
            "outputs": json.dumps(describe_outputs(len(labels))),
            "package": __version__,
        }
        write_model(file, model, {**about, **properties})
        difference = compare(path, temporary, reference, samples)
        size = temporary.stat().st_size
        files.write_text(text_beside(path), write_usage(path.name, shape, list(labels)))
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    return Exported(path, size, difference, len(samples), opset)


def require_packages() -> None:
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError:
            raise ConfigError(
                f"export needs {', '.join(PACKAGES)}, and {name} is missing; "
                "run: pip install 'strongreplay[onnx]'"
            ) from None


def check_settings(
    net: nn.Module,
    path: Path,
    shape: tuple[int, ...],
    mean: Sequence[float],
    std: Sequence[float],
    labels: Sequence[str | int],
) -> None:
    """Raise for every error that can be found before the slow part."""
    tensors = [*net.parameters(), *net.buffers()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    length = shape[0] if shape else 0
    rules = [
        (os.path.isdir(path), f"this is a folder, expected a file; name one, such as {path / 'model.onnx'}"),
        (
            path.suffix.lower() != ENDING,
            f"the file is ONNX, so its name must end in {ENDING}, got {path.suffix or 'none'}; "
            f"name it {path.stem[:40]}{ENDING}",
        ),
        (
            len(shape) not in (1, 3) or min(shape) < 1,
            f"shape must be (C, H, W) or (D,), got {shape}; give one of them",
        ),
        (
            len(shape) == 3 and (shape[0] not in (1, 3) or shape[1] != shape[2]),
            f"images must be square and have 1 or 3 channels, got {shape}; use the net in PyTorch",
        ),
        (len(mean) not in (1, length), f"mean must have 1 or {length} values, got {len(mean)}; give as many"),
        (len(std) not in (1, length), f"std must have 1 or {length} values, got {len(std)}; give as many"),
        (not all(map(math.isfinite, mean)), f"mean must be finite, got {mean}; give other values"),
        (
            not all(0 < s < math.inf for s in std),
            f"std must be above 0 and finite, got {std}; give 1 instead",
        ),
        (len(labels) == 0, "there are no labels, so nothing to answer; learn some classes first"),
        (len({*labels}) < len(labels), "a label stands for two columns; name each column once"),
        (size > MAX_BYTES, f"{size:,} bytes of weights do not fit the 2 GiB of one file; take a smaller net"),
    ]
    for broken, text in rules:
        if broken:
            raise ConfigError(f"{path}: {text}")


@contextmanager
def beside(path: Path) -> Iterator[tuple[Path, files.Writer]]:
    """A temporary file that is renamed at the end; write errors appear before the slow part."""
    try:
        if not os.path.lexists(path.parent):  # a mistyped path must not create folders
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
        with files.replaced(path) as made:
            yield made
    except OSError as error:
        raise RunError(
            f"{path}: the file could not be written ({error.strerror or error}); choose another place"
        ) from None
