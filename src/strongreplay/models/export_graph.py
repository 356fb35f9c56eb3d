"""A net as an ONNX graph, with normalisation inside and nothing of this machine."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from strongreplay.errors import RunError
from strongreplay.storage import files

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

OUTPUTS = ["logits", "probabilities"]


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


class OnFeatures(nn.Module):
    """A frozen body, and a net that takes its features, normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, net: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.body, self.net = body, net
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net((self.body(inputs) - self.mean) / self.std)
        return logits


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
