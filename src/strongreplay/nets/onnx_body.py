"""A frozen body that is an ONNX graph, run by onnxruntime. Its bytes are a buffer, saved like weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from strongreplay.errors import ConfigError, DataError
from strongreplay.nets.heads import COUNTS
from strongreplay.storage import files

MOST_BYTES = 1 << 31
HEADS = ("Gemm", "MatMul")


class OnnxBody(nn.Module):
    """From (B, C, H, W) float inputs to the (B, D) features of a graph."""

    graph: Tensor  # (N,) uint8

    def __init__(self, graph: bytes = b"") -> None:
        super().__init__()
        self.register_buffer("graph", torch.frombuffer(bytearray(graph or b"\0"), dtype=torch.uint8))
        self.session: Any = None

    def start(self) -> Any:
        if self.session is None:
            self.session = open_session(self.graph.cpu().numpy().tobytes())
        return self.session

    @property
    def input_shape(self) -> list[int | None]:
        """Batch, channels, height and width; none where the graph takes any."""
        return [size if isinstance(size, int) else None for size in self.start().get_inputs()[0].shape]

    def properties(self) -> dict[str, str]:
        found: dict[str, str] = self.start().get_modelmeta().custom_metadata_map
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        return self.answer(inputs).flatten(1)

    def answer(self, inputs: Tensor) -> Tensor:
        """As the graph gives it."""
        session = self.start()
        name, one_by_one = session.get_inputs()[0].name, self.input_shape[0] == 1
        array = inputs.detach().cpu().numpy().astype(np.float32)
        parts = np.split(array, len(array)) if one_by_one else [array]
        found = [torch.from_numpy(session.run(None, {name: part})[0]) for part in parts]
        return torch.cat(found).to(inputs.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (saved := state_dict.get(f"{prefix}graph")) is not None:
            self.graph, self.session = torch.empty_like(saved), None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnnxBody":
        return OnnxBody(self.graph.cpu().numpy().tobytes())  # a session cannot be copied


def open_session(graph: bytes) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("a net in ONNX needs onnxruntime; run: pip install 'strongreplay[onnx]'") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common base class of exceptions
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"the ONNX graph cannot be run ({reason}); export it again") from None


def read_onnx(path: Path) -> tuple[OnnxBody, str | None]:
    """The body in a file, without a classifier's head, and a note if one was cut off."""
    if not path.is_file():
        raise ConfigError(f"net {path}: no such file; give the path of an .onnx file")
    data = read_graph(path)
    body = OnnxBody(data)
    session = body.start()
    given = session.get_inputs()
    if len(given) != 1 or len(given[0].shape) != 4 or "float" not in given[0].type:
        got = ", ".join(f"{each.name} {each.shape} {each.type}" for each in given)
        raise ConfigError(
            f"net {path}: must take one float input (batch, channels, height, width), got {got}"
        )
    if body.input_shape[1] not in (1, 3, None):
        raise ConfigError(f"net {path}: channels must come second, got {given[0].shape}; export it as NCHW")
    width = session.get_outputs()[0].shape[-1]
    if width not in COUNTS:
        return body, None
    cut, layer = without_head(data, path)
    return OnnxBody(cut), f"its head {layer} for {width} classes is left out"


def read_graph(path: Path) -> bytes:
    """The bytes of a graph; weights in a file beside it are put into it."""
    try:
        import onnx
    except ImportError:
        return files.read_bytes(path, MOST_BYTES, follow=True)
    try:
        graph: bytes = onnx.load(path).SerializeToString()
    except Exception as error:  # protobuf and onnx raise many kinds
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"{path}: no ONNX graph, or its weights are missing ({reason}); export it again"
        ) from None
    return graph


def without_head(data: bytes, path: Path) -> tuple[bytes, str]:
    """The graph with the input of its last linear layer as output."""
    try:
        import onnx
    except ImportError:
        raise ConfigError(
            f"net {path}: ends with a classifier's head, and taking it off needs onnx; "
            "run: pip install 'strongreplay[onnx]'"
        ) from None
    model = onnx.load_from_string(data)
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.get(model.graph.output[0].name)
    while node is not None and node.op_type in ("Softmax", "Add", "Identity", "LogSoftmax"):
        node = next((makers[name] for name in node.input if name in makers), None)
    if node is None or node.op_type not in HEADS:
        raise ConfigError(
            f"net {path}: answers with classes, and its head was not found; export its features"
        )
    features = onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None)
    del model.graph.output[:]
    model.graph.output.append(features)
    return model.SerializeToString(), node.name or node.op_type


def moments_of(properties: dict[str, str]) -> tuple[list[float], list[float]] | None:
    """Mean and deviation in the metadata of a graph, if they are there."""
    try:
        return [float(v) for v in json.loads(properties["mean"])], [
            float(v) for v in json.loads(properties["std"])
        ]
    except (KeyError, ValueError, TypeError):
        return None
