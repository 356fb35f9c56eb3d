"""ser export: the file answers like the model, whatever method and normalisation it has."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.kept_models import CPU, make_model, ser, some_digits, teach, write_folder

from strongreplay.models.parts import model_of
from strongreplay.models.store import Store

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("made"))


def answers(path: Path, inputs: NDArray[np.uint8]) -> tuple[list[object], NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
    colours = np.ascontiguousarray(
        np.broadcast_to(inputs, (len(inputs), 3, *inputs.shape[2:])).transpose(0, 2, 3, 1)
    )
    logits = session.run(["logits"], {"images": colours})[0]
    return labels, logits


@pytest.mark.slow
def test_the_file_answers_like_the_model(state: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    said = ser("export", state, out)
    assert said.code == 0, said.err
    assert said.lines[0].startswith(f"{out}: v2, ")
    assert ", opset " in said.lines[0]
    assert said.lines[1] == "labels: one, zero, two; all are in the metadata"
    assert said.lines[2].startswith("onnxruntime and PyTorch differ by at most ")
    assert said.lines[2].endswith(" on 40 samples")
    inputs = some_digits((0, 1, 2), 70, 10)[0][:, None]
    labels, logits = answers(out, inputs)
    model = model_of(Store(state).read()[1], CPU)
    assert labels == model.labels
    np.testing.assert_allclose(logits, model.scores(torch.from_numpy(inputs)).numpy(), atol=1e-4)


def test_a_file_that_is_there_is_kept(state: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    out.write_text("mine")
    said = ser("export", state, out)
    assert said.code == 2
    assert "--force" in said.err
    assert out.read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("method", [{"learner.method": "clser"}, {"method.average": 0.99}])
def test_the_net_that_answers_is_written_and_nothing_is_normalised_unless_it_was(
    method: dict[str, Any], tmp_path: Path
) -> None:
    state, out = tmp_path / "model", tmp_path / "out" / "model.onnx"
    settings = method | {"learner.normalise": False, "learner.memory": 20}
    teach(state, write_folder(tmp_path / "data", (0, 1), 0, 20), settings=settings)
    teach(state, write_folder(tmp_path / "more", (2,), 0, 20), max_drop=200.0)
    out.parent.mkdir()
    out.write_text("not mine")
    assert ser("export", state, out, "--version", "v1", "--force").code == 0
    inputs = some_digits((0, 1), 70, 10)[0][:, None]
    model = model_of(Store(state).read("v1")[1], CPU)
    expected = model.scores(torch.from_numpy(inputs)).numpy()
    labels, logits = answers(out, inputs)
    assert labels == ["one", "zero"]
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    working = model.method.net(model.test_view(torch.from_numpy(inputs))).detach().numpy()
    assert abs(working[:, :2] - expected).max() > 1e-2
    assert sorted(path.name for path in out.parent.iterdir()) == ["model.onnx", "model.onnx.md"]


def test_a_name_that_promises_another_format_is_refused(state: Path, tmp_path: Path) -> None:
    said = ser("export", state, tmp_path / "model.pt")
    assert said.code == 2
    assert "its name must end in .onnx, got .pt; name it model.onnx" in " ".join(said.err.split())
    (tmp_path / "model.onnx.md").write_text("mine")
    assert ser("export", state, tmp_path / "model.onnx").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx.md"]


def test_mistakes_leave_nothing(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    shutil.copytree(state, own)
    assert ser("export", own, tmp_path / "m.onnx", "--version", "v9").code == 2
    assert ser("export", tmp_path / "none", tmp_path / "m.onnx").code == 1
    assert ser("export", own, tmp_path / "none" / "m.onnx").code == 1
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as if it were not installed
    said = ser("export", own, tmp_path / "m.onnx")
    assert said.code == 2
    assert "onnxscript is missing" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own"]
