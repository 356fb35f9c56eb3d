"""What the service says about its traffic is what `ser drift` says about the same images."""

import json
from pathlib import Path

import pytest
from support.kept_models import CPU, QUICK, ser, write_folder

from strongreplay.models.learn import LearnRequest, learn
from strongreplay.models.store import Store
from strongreplay.serve.batching import read_features
from strongreplay.serve.bodies import Upload, decode_images
from strongreplay.serve.live import LiveModel
from strongreplay.serve.remembered import SampleCache
from strongreplay.serve.traffic import ROOM, Traffic

pytestmark = pytest.mark.slow
BACKBONE = """
from torch import nn

def factory(input_shape, num_classes):
    body = nn.Sequential(nn.Conv2d(input_shape[0], 8, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    net = nn.Sequential(body, nn.Flatten(), nn.Linear(32, num_classes))
    net.input_side = 20
    return net
"""


@pytest.mark.parametrize("score", ["energy", "features"])
def test_the_service_measures_as_ser_drift_does_and_keeps_a_bounded_number(
    tmp_path: Path, score: str
) -> None:
    (tmp_path / "mine.py").write_text(BACKBONE)
    frozen = {"net.name": f"{tmp_path / 'mine.py'}:factory", "net.tune": "none", "learner.method": "slda"}
    settings = (QUICK if score == "energy" else frozen) | {"learner.val": 0.4, "learner.memory": 200}
    data = write_folder(tmp_path / "january", (0, 1), 0, 60)
    learn(tmp_path / "model", LearnRequest(data, settings=settings, again=True), CPU)
    new = write_folder(tmp_path / "new", (0, 1, 2), 80, 20)
    live = LiveModel(Store(tmp_path / "model"), CPU)
    traffic, model = Traffic(SampleCache(live)), live.loaded.model
    uploads = [Upload(path.name, path.read_bytes()) for path in sorted(new.rglob("*.png"))]
    stored = read_features(model, decode_images(uploads, model.shape, 10**6))
    traffic.note(live.loaded, stored, model.scores(stored))
    found, said = traffic.report(), json.loads(ser("drift", live.store.folder, "--data", new, "--json").out)
    assert (found["score"], found["samples"]) == (score, 60)
    assert found["threshold"] == pytest.approx(said["threshold"], rel=1e-4)
    assert [found[key] for key in ("unlike", "held_out")] == [said[key] for key in ("unlike", "held_out")]
    assert list(found["classes"]) == said["classes"]
    while len(traffic.rows) < ROOM:
        traffic.note(live.loaded, stored, model.scores(stored))
    assert len(traffic.rows) == ROOM
