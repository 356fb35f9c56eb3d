"""Export a net as one ONNX file, including normalisation and label names.

The file takes images as stored (uint8), or raw features, in batches of any size; it returns logits and
probabilities. It is renamed to its final name only after onnxruntime agrees with PyTorch to 1e-4.
"""

import contextlib
import errno
import io
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from strongreplay import __version__
from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.storage import files

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

PACKAGES = "onnx", "onnxscript", "onnxruntime"
INPUTS = {3: "images", 1: "features"}  # number of dimensions -> name of the input
OUTPUTS = ["logits", "probabilities"]
LIMIT = 1e-4  # largest difference to PyTorch; scaled by the largest logit if that is above 1
BATCH_SIZES = 1, 7, 100
MAX_BYTES = 2**31 - 2**24  # protobuf allows 2 GiB; a small part is not weights


@dataclass(frozen=True, slots=True)
class Exported:
    """The written file, and the largest difference of its logits to PyTorch."""

    path: Path
    bytes: int
    max_difference: float
    num_checked: int
    opset: int


class Deployed(nn.Module):
    """From images as stored, or raw features, to logits and probabilities."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, net: nn.Module, shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.net = net
        self.scale = 255.0 if len(shape) == 3 else 1.0
        sides = [1] * (len(shape) - 1)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, *sides))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, *sides))

    def forward(self, stored: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.net((stored.float() / self.scale - self.mean) / self.std)
        return logits, logits.softmax(1)


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
        model = build_model(path, with_plain_layers(deepcopy(reference)), two, INPUTS[len(shape)])
        properties = {
            "labels": json.dumps(list(labels), default=int),  # for integers of numpy
            "shape": json.dumps(list(shape)),
            "mean": json.dumps([float(value) for value in mean]),
            "std": json.dumps([float(value) for value in std]),
            "package": __version__,
        }
        write_model(file, model, {**about, **properties})
        difference = compare(path, temporary, reference, samples)
        size = temporary.stat().st_size
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
            len(shape) not in INPUTS or min(shape) < 1,
            f"shape must be (C, H, W) or (D,), got {shape}; give one of them",
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


def random_samples(shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    generator = torch.Generator().manual_seed(0)  # the caller's generators are not touched
    size = (max(BATCH_SIZES), *shape)
    if len(shape) == 3:
        return torch.randint(256, size, dtype=torch.uint8, generator=generator)
    return torch.randn(size, generator=generator) * torch.tensor(std) + torch.tensor(mean)


def checked_samples(path: Path, samples: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The samples on the host, after checking shape and dtype."""
    expected = f"images must be (N, {', '.join(map(str, shape))}) {'uint8' if len(shape) == 3 else 'float'}"
    if samples.shape[1:] != shape or (len(shape) == 3) != (samples.dtype == torch.uint8):
        raise DataError(
            f"{path}: {expected}, got {tuple(samples.shape)} {samples.dtype}; give them as stored"
        )
    return (samples if len(shape) == 3 else samples.float()).detach().cpu().contiguous()


def check_logits(path: Path, reference: Deployed, samples: Tensor, num_labels: int) -> None:
    with torch.inference_mode():
        logits = reference(samples)[0]
    if (got := tuple(logits.shape)) != (expected := (len(samples), num_labels)):
        raise ConfigError(
            f"{path}: {num_labels} labels need logits {expected}, the net gave {got}; name every column"
        )
    if not logits.isfinite().all():
        raise RunError(
            f"{path}: logits must be finite, the net gave {logits[0].tolist()[:3]}; train it again"
        )


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


def with_plain_layers(module: nn.Module) -> nn.Module:
    """A copy whose linear layers are all plain nn.Linear, so that the file has no custom multiplication."""
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, nn.Linear) and type(layer) is not nn.Linear:
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, plain_linear(layer))
    return module


def plain_linear(layer: nn.Linear) -> nn.Linear:
    plain = nn.Linear(layer.in_features, layer.out_features, device="meta")  # meta draws no weights
    plain.weight, plain.bias = layer.weight, layer.bias
    return plain.eval()


def build_model(path: Path, module: nn.Module, samples: Tensor, name: str) -> "ModelProto":
    """The graph for any batch size, without stack traces or paths of this machine."""
    try:
        with quiet_exporter():
            model = trace(module, samples, name)
            if not model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
                # The fast tracer treats `len(batch)` as a constant; the strict one reads the code.
                batch = {0: torch.export.Dim("batch")}
                program = torch.export.export(module, (samples,), dynamic_shapes=(batch,), strict=True)
                model = trace(program, samples, name)
    except Exception as error:  # a user's net may raise anything
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise RunError(f"{path}: this net cannot be written as ONNX ({reason}); change its layers") from error
    strip(model.graph)
    return model


def trace(net: nn.Module | torch.export.ExportedProgram, samples: Tensor, name: str) -> "ModelProto":
    program = torch.onnx.export(
        net,
        (samples,),
        dynamo=True,
        input_names=[name],
        output_names=OUTPUTS,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    assert program is not None  # only the older exporter returns None
    model: ModelProto = program.model_proto
    return model


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Suppress the exporter's log messages; errors are still raised as exceptions."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def strip(graph: "GraphProto") -> None:
    """Remove the exporter's metadata: stack traces with paths of this machine."""
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer, graph):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for inner in (
        attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")
    ):
        strip(inner)


def write_model(file: files.Writer, model: "ModelProto", properties: Mapping[str, str]) -> None:
    del model.metadata_props[:]
    for key, value in properties.items():
        # File names may be invalid Unicode, which the format does not allow.
        text = value.encode(errors="backslashreplace").decode()
        model.metadata_props.add(key=key, value=text)
    file.write(model.SerializeToString())


def compare(path: Path, file: Path, reference: Deployed, samples: Tensor) -> float:
    """The largest difference of a logit over all batches; above the limit it is an error."""
    session = open_session(path, file)
    worst = 0.0
    for batch in batches(samples):
        with torch.inference_mode():
            expected = reference(batch)[0]
        logits = run_session(path, session, batch)
        same = logits.shape == expected.shape
        difference = (logits - expected).abs().max().item() if same else math.inf
        limit = LIMIT * max(1.0, expected.abs().max().item())
        if not difference <= limit:  # `not <=` is also true for NaN
            raise RunError(
                f"{path}: onnxruntime and PyTorch differ by {difference:.3g} in a batch of {len(batch)}, "
                f"at most {limit:.3g} is allowed; nothing was written, use the net in PyTorch"
            )
        worst = max(worst, difference)
    return worst


def batches(samples: Tensor) -> Iterator[Tensor]:
    """Batches of all sizes, with repeated samples if there are few, and then the remaining samples."""
    for size in BATCH_SIZES:
        yield cycle(samples, size)
    for start in range(BATCH_SIZES[-1], len(samples), BATCH_SIZES[-1]):
        yield samples[start : start + BATCH_SIZES[-1]]


def cycle(samples: Tensor, size: int) -> Tensor:
    """A batch of `size` samples; after the last sample it starts again with the first."""
    return samples[torch.arange(size) % len(samples)]


def open_session(path: Path, file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # log errors only; they are raised as exceptions too
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common base class of exceptions
        raise refused(path, error) from error


def run_session(path: Path, session: Any, batch: Tensor) -> Tensor:
    name = session.get_inputs()[0].name
    try:
        return torch.from_numpy(session.run(OUTPUTS[:1], {name: batch.numpy()})[0])
    except Exception as error:  # as above
        raise refused(path, error) from error


def refused(path: Path, error: Exception) -> RunError:
    reason = str(error).strip().partition("\n")[0]
    return RunError(f"{path}: onnxruntime does not run this net ({reason}); use it in PyTorch")
