"""A model on a backbone in ONNX becomes one file: its graph, what is in front of it, and the head."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image
from support.graphs import write_graph
from support.kept_models import ser
from support.photos import COLOURS, write_photos

FLAT = "p = AveragePool <kernel_shape = [4, 4], strides = [4, 4]> (x) y = Flatten (p)"
POOLED = "r = Relu (x) y = GlobalAveragePool (r)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "answer", "batch", "opset", "method"),
    [
        (FLAT, "12", "batch", 18, "slda"),
        (POOLED, "3, 1, 1", "1", 13, "ser"),  # for one image at a time, in an older version
        (FLAT, "12", "n", 21, "ncm"),  # in a newer version than the head is written in
    ],
)
def test_the_file_answers_as_ser_predict(
    body: str, answer: str, batch: str, opset: int, method: str, tmp_path: Path
) -> None:
    net = write_graph(tmp_path / "features.onnx", body, answer, batch, opset)
    state, out = tmp_path / "state", tmp_path / "model.onnx"
    photos = write_photos(tmp_path / "a", list(COLOURS), side=40)
    assert ser("learn", state, "--data", photos, "--net", net, "--method", method).code == 0
    said = ser("export", state, out)
    assert said.code == 0, said.err
    new = write_photos(tmp_path / "b", list(COLOURS), 17, side=53, seed=1)
    answers = [line.split("\t")[:2] for line in ser("predict", state, new).out.splitlines()]
    assert len(answers) == 51
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["images"]
    labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
    images = np.stack([np.asarray(Image.open(path)) for path, _ in answers])
    found = session.run(["probabilities"], {"images": images})[0].argmax(1)
    assert [labels[column] for column in found] == [label for _, label in answers]
    assert {entry.domain for entry in onnx.load(out).opset_import} == {""}
    assert str(tmp_path).encode() not in out.read_bytes()
