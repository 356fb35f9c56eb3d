"""The graph of a model whose backbone is an ONNX graph itself: normalisation, that graph, and the head."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strongreplay.errors import RunError
from strongreplay.models.export_graph import Deployed, OnFeatures, build_model, strip
from strongreplay.nets.onnx_body import OnnxBody

if TYPE_CHECKING:
    from onnx import ModelProto

NORMALISE = """
<ir_version: {ir_version}, opset_import: ["" : {opset}]>
normalise (uint8[batch, {sides}] {pixels}) => (float[batch, {sides}] inputs)
<
    float whole = {{255}}, float[1, {channels}, 1, 1] mean = {{{mean}}},
    float[1, {channels}, 1, 1] deviation = {{{std}}}
>
{{
    values = Cast <to = 1> ({pixels})
    shares = Div (values, whole)
    centred = Sub (shares, mean)
    inputs = Div (centred, deviation)
}}
"""


def build_on_graph(path: Path, module: Deployed, samples: Tensor, name: str) -> "ModelProto":
    """As `build_model`, of a module whose net is `OnFeatures` of an OnnxBody."""
    from onnx import compose, version_converter

    net = module.net
    assert isinstance(net, OnFeatures)
    assert isinstance(net.body, OnnxBody)
    shape, num_features = tuple(samples.shape[1:]), len(net.mean)
    deployed = Deployed(net.net, (num_features,), net.mean.tolist(), net.std.tolist()).eval()
    head = build_model(path, deployed, torch.zeros(2, num_features), "features")
    try:
        body = prepared_body(net.body, num_features)
        opset = max(opset_of(body), opset_of(head))
        body, head = (
            part if opset_of(part) == opset else version_converter.convert_version(part, opset)
            for part in (body, head)
        )
        head.ir_version = body.ir_version = max(body.ir_version, head.ir_version)
        front = normalisation(module, shape, name, head.ir_version, opset)
        front = compose.add_prefix(front, "normalise/", rename_inputs=False, rename_outputs=False)
        body = compose.add_prefix(body, "backbone/")
        inputs, features = body.graph.input[0].name, body.graph.output[0].name
        joined = compose.merge_models(front, body, [("inputs", inputs)])
        model: ModelProto = compose.merge_models(joined, head, [(features, "features")])
    except Exception as error:  # of protobuf and onnx, without a common base class
        reason = str(error).strip().partition("\n")[0]
        raise RunError(
            f"{path}: the graph of the backbone cannot be joined with its head ({reason}); use `ser predict` "
            "or `ser serve`"
        ) from error
    return model


def opset_of(model: "ModelProto") -> int:
    version: int = next(entry.version for entry in model.opset_import if not entry.domain)
    return version


def prepared_body(body: OnnxBody, num_features: int) -> "ModelProto":
    """The graph with one input and one flat output, for batches of any size, and nothing of this machine."""
    import onnx
    import onnx.utils

    whole = onnx.load_from_string(body.graph.cpu().numpy().tobytes())
    given, answer = body.start().get_inputs()[0].name, whole.graph.output[0].name
    model: ModelProto = onnx.utils.Extractor(whole).extract_model(
        [given], [answer]
    )  # a head cut off is dropped
    graph, shape = model.graph, ("batch", num_features)
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    graph.node.append(onnx.helper.make_node("Flatten", [answer], ["flat features"], axis=1))
    graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("flat features", onnx.TensorProto.FLOAT, shape)
    )
    del graph.value_info[:]  # they may know the size of a batch
    del model.metadata_props[:]
    strip(graph)
    return model


def normalisation(
    module: Deployed, shape: tuple[int, ...], name: str, ir_version: int, opset: int
) -> "ModelProto":
    from onnx import parser

    mean, std = (
        ", ".join(f"{value:.9g}" for value in each.flatten().expand(shape[0]).tolist())
        for each in (module.mean, module.std)
    )
    sides = ", ".join(map(str, shape))
    text = NORMALISE.format(
        ir_version=ir_version, opset=opset, pixels=name, mean=mean, std=std, channels=shape[0], sides=sides
    )
    return parser.parse_model(text)
