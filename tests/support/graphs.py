"""Small ONNX graphs, written as text."""

from pathlib import Path

import pytest


def write_graph(path: Path, body: str, answer: str, batch: str = "batch", opset: int = 18) -> str:
    """A graph from images `x` of 3 x 8 x 8 to `y`, whose shape after the batch is `answer`."""
    onnx = pytest.importorskip("onnx")
    text = f"""<ir_version: 9, opset_import: ["" : {opset}]>
    net (float[{batch}, 3, 8, 8] x) => (float[{batch}, {answer}] y) {{ {body} }}"""
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)
