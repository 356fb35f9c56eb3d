"""A kept model on features of a frozen backbone: from the command line, in new processes, with its cache."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.graphs import write_graph
from support.kept_models import CPU, ser
from support.photos import COLOURS, write_photos

from strongreplay.data.images import read_image
from strongreplay.data.rows import Rows
from strongreplay.data.user_data import digests
from strongreplay.errors import ConfigError, DataError
from strongreplay.learner import Learner
from strongreplay.models.choice import tuned_by
from strongreplay.models.duplicates import prints_of
from strongreplay.models.erasure import forget
from strongreplay.models.features import FOLDER, FeatureCache, FeatureReader
from strongreplay.models.inspect import evaluate_versions, read_status
from strongreplay.models.learn import LearnOutcome, LearnRequest, learn
from strongreplay.models.load import load_model
from strongreplay.models.memory_view import read_parts, samples_of
from strongreplay.models.parts import model_of, parts_of
from strongreplay.models.store import Store
from strongreplay.nets import published
from strongreplay.nets.backbones import open_backbone
from strongreplay.training.events import Listener

MINE = """
import torch
from torch import nn

def factory(input_shape, num_classes):
    body = nn.Sequential(nn.Conv2d(3, 6, 5, 4), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    net = nn.Sequential(body, nn.Flatten(), nn.Linear(6, num_classes))
    net.input_side = 24
    return net
"""

ROOT = """
import torch
from torch import nn

class Root(nn.Module):
    input_side = 24

    def forward(self, inputs):
        red, green, _ = inputs.mean((2, 3)).unbind(1)
        return torch.stack([red, (red - green).sqrt()], 1)

def factory(input_shape, num_classes):
    return Root()
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path / 'mine.py'}:factory"


class Said(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, text: str) -> None:
        self.lines.append(text)


def teach(state: Path, data: Path, said: Said | None = None, **settings: object) -> LearnOutcome:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return learn(state, LearnRequest(data, settings=given, again=True), CPU, [said] if said else [])


@pytest.mark.parametrize("method", ["slda", "ncm", "ser"])
def test_months_on_a_frozen_net_keep_no_image_and_move_no_weight(
    tmp_path: Path, net: str, method: str
) -> None:
    state, said = tmp_path / "state", Said()
    teach(state, write_photos(tmp_path / "a", ["red", "green"]), said, net__name=net, net__tune=(
        "head" if method == "ser" else "none"), learner__method=method)  # fmt: skip
    first = Store(state).read()[1]["backbone"]
    teach(state, write_photos(tmp_path / "b", ["blue"], seed=1))
    _, parts = Store(state).read()
    moved = [key for key, value in first.items() if not torch.equal(value, parts["backbone"][key])]
    assert not moved
    assert "num_batches_tracked" in "".join(first)  # statistics of the normalisation are among them
    assert parts["held"]["samples"]["images"].shape[1:] == (6,)
    status = read_status(Store(state))
    assert status.memory.is_features
    assert (
        status.memory.keeps
        == {"slda": "class means, one covariance", "ncm": "class means", "ser": ""}[method]
    )
    assert any(line.startswith("features of 24 images by mine.py:factory in") for line in said.lines)
    test = write_photos(tmp_path / "c", list(COLOURS), 5, seed=2)
    assert evaluate_versions(Store(state), test, None, "none", CPU).accuracy == 100
    _, model = load_model(Store(state), None, CPU)
    assert model.shape == (3, 24, 24)
    images = torch.zeros(2, 3, 24, 24, dtype=torch.uint8)
    assert torch.equal(model.scores(images), model.scores(model.stored(images)))


def test_features_have_no_picture_and_a_refusal_names_no_learning_rate(tmp_path: Path, net: str) -> None:
    state, photos = tmp_path / "state", write_photos(tmp_path / "a", ["red", "green"], 40)
    teach(state, photos, net__name=net, net__tune="none", learner__method="slda")
    shown = ser("memory", state, "show", "-o", tmp_path / "m.png")
    assert "keeps features, not images" in shown.out
    assert not (tmp_path / "m.png").exists()
    wrong = write_photos(tmp_path / "b", ["red", "green"], 60, seed=1)
    (wrong / "red").rename(wrong / "tmp")
    (wrong / "green").rename(wrong / "red")
    (wrong / "tmp").rename(wrong / "green")
    said = ser("learn", state, "--data", wrong, "--guard", photos)
    assert said.code == 3
    assert "look at the labels of the new data" in said.out
    assert "--lr" not in said.out
    diff = ser("diff", state, "v1", "candidate")
    assert diff.code == 0
    assert "accuracy in per cent on held-out samples" in diff.out


def test_a_picture_is_computed_once_and_forgotten_with_the_cache(tmp_path: Path, net: str) -> None:
    state, said = tmp_path / "state", Said()
    teach(state, photos := write_photos(tmp_path / "a", ["red", "green"]), net__name=net, net__tune="none")
    (cached,) = (state / FOLDER).iterdir()
    assert load_file(cached)["features"].shape == (24, 6)
    write_photos(tmp_path / "more", ["blue"], 3)
    shutil.copytree(tmp_path / "more", photos, dirs_exist_ok=True)
    teach(state, photos, said)
    assert any("features of 3 images" in line and "24 were in the cache" in line for line in said.lines)
    forget(Store(state), labels=["red"])
    assert not (state / FOLDER).exists()


def test_a_file_that_was_moved_must_be_put_back(tmp_path: Path, net: str) -> None:
    state, photos = tmp_path / "state", write_photos(tmp_path / "a", ["red", "green"])
    teach(state, photos, net__name=net, net__tune="none")
    mine = Path(net.rpartition(":")[0])
    away = mine.rename(tmp_path / "away.py")
    for words in (
        ("predict", state, photos),
        ("diff", state, "v1", "v1"),
        ("export", state, tmp_path / "f.onnx"),
    ):
        said = ser(*words)
        assert said.code == 2
        assert f"the model is built by {mine}, which is not there; put it back there" in said.err
    away.rename(mine)
    assert ser("predict", state, photos).code == 0


def test_how_long_features_take_is_told_after_the_first_block(
    tmp_path: Path, net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10, 10_000, 4))  # two readings to the end of a block
    monkeypatch.setattr("strongreplay.models.features.time.perf_counter", lambda: next(clock))
    reader, said = FeatureReader(open_backbone(net), CPU), Said()
    reader.tell = said.on_message
    rows = Rows("photos", 80, reader)
    for pixels in np.zeros((80, 3, 24, 24), np.uint8):
        rows.add(pixels)
    assert rows.tensor().shape == (80, 6)
    assert said.lines == ["features of 80 photos: about 20 s"]  # 8 s for 32
    state, photos = tmp_path / "state", write_photos(tmp_path / "a", ["red", "green"], 20)
    teach(state, photos, said, net__name=net, net__tune="none")
    write_photos(tmp_path / "b", ["blue"], 40, seed=1)
    teach(state, tmp_path / "b", said)
    told = [line.rpartition(" ")[0].rpartition(" ")[0] for line in said.lines if " photos: " in line]
    assert told == [
        f"features of {n} photos: {about}" for n, about in ((80, "about"), (40, "about"), (40, "at most"))
    ]


def test_a_photo_that_is_not_kept_is_erased_by_its_file(tmp_path: Path, net: str) -> None:
    state, photos = tmp_path / "state", write_photos(tmp_path / "a", ["red", "green"], 17)
    teach(state, photos, net__name=net, net__tune="none", learner__method="slda")
    teach(state, write_photos(tmp_path / "b", ["blue"], seed=1))
    kept = {sample.source for sample in samples_of(read_parts(Store(state), None)[1])}
    paths = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    gone, other = [path for path in paths if path not in kept][-2:]
    needles = {name: photo_traces(state, photos / name) for name in (gone, other)}
    held = [needle in all_bytes(state) for needle in needles[gone]]
    assert held == [True, True]

    said = ser("memory", state, "forget", "--source", gone, "--yes")
    assert said.code == 2
    assert "no remembered sample has such" in said.err
    assert "the cache of features was removed" in said.err
    assert "erase it with --file PHOTO" in " ".join(said.err.split())
    assert not (state / FOLDER).exists()
    assert [needle in all_bytes(state) for needle in needles[gone]] == [False, True]

    said = ser("memory", state, "forget", "--file", photos / gone, "--yes")
    assert said.code == 0, said.err
    assert "1 print of learnt photos, 8 bytes each" in said.err
    assert said.lines[0] == "forgotten: prints of photos, in v1, v2"
    assert [needle in all_bytes(state) for needle in needles[gone]] == [False, False]
    assert needles[other][1] in all_bytes(state)
    said = ser("memory", state, "forget", "--file", photos / gone, "--yes")
    assert (said.code, "the cache of features" in said.err) == (2, False)
    assert ser("learn", state, "--data", photos).code == 0


def photo_traces(state: Path, photo: Path) -> list[bytes]:
    """The features of a photo as they are in the cache, and its print."""
    _, model = load_model(Store(state), None, CPU)
    assert model.reader
    cache = FeatureCache(state / FOLDER, model.reader.backbone.key)
    (name,) = digests(torch.from_numpy(read_image(photo, 24, 3).copy())[None])
    features = cache.find(name)
    assert features is not None
    return [features.numpy().tobytes(), prints_of(digests(features[None])).numpy().tobytes()]


def all_bytes(state: Path) -> bytes:
    return b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())


def test_features_have_the_same_bits_in_any_company(net: str) -> None:
    reader = FeatureReader(open_backbone(net), CPU)
    images = torch.randint(
        256, (40, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    together, alone = reader(images), reader(images[[39, 3, 17]])
    assert torch.equal(together[[39, 3, 17]], alone)


def test_the_cache_stays_in_its_bounds_and_serves_one_backbone(tmp_path: Path) -> None:
    limit = 10 * (4 * 8 + 32) + 3 * 400
    for number in range(6):
        cache = FeatureCache(tmp_path, "key", limit)
        for row in range(4):
            cache.add(f"{number:02x}{row:02x}" * 16, torch.full((8,), float(number)))
        cache.write()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit
    again = FeatureCache(tmp_path, "key", limit)
    assert torch.equal(again.known["0503" * 16], torch.full((8,), 5.0))
    assert again.find("0000" * 16) is None
    assert not FeatureCache(tmp_path, "another", limit).known
    (tmp_path / "f000006.safetensors").write_bytes(b"damaged")
    assert FeatureCache(tmp_path, "key", limit).find("0503" * 16) is None


def test_all_of_a_net_is_trained_with_a_smaller_rate_for_its_body(tmp_path: Path, net: str) -> None:
    state = tmp_path / "state"
    teach(state, write_photos(tmp_path / "a", ["red", "green"]), net__name=net, net__tune="all",
          net__body_rate=0.5, learner__method="er", train__epochs=2)  # fmt: skip
    _, parts = Store(state).read()
    assert "backbone" not in parts
    assert parts["memory"]["samples"]["images"].shape[1:] == (3, 24, 24)
    _, model = load_model(Store(state), None, CPU)
    groups = model.method.net.parameter_groups()  # type: ignore[operator]
    assert [group.get("lr_scale") for group in groups] == [None, 0.5]
    fresh = open_backbone(net).body.state_dict()
    moved = [key for key, value in fresh.items() if not torch.equal(value, parts["net"][f"body.{key}"])]
    # Weights and statistics; only a bias before a normalisation has no effect.
    assert set(fresh) - set(moved) <= {"0.0.bias"}


@pytest.mark.parametrize(
    ("method", "tune", "message"),
    [
        ("ser", "none", "trains nothing"),
        ("slda", "all", "computes its head"),
        (None, "all", "can't be trained"),
    ],
)
def test_what_is_tuned_must_fit_the_method(method: str | None, tune: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tuned_by("features.onnx", method, tune)


def test_large_images_from_scratch_are_refused_on_a_cpu(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "a", ["red", "green"], 2)
    with pytest.raises(ConfigError, match="--side 224 from scratch takes seconds a step"):
        learn(tmp_path / "state", LearnRequest(photos, side=224, settings={"net.name": "resnet18"}), CPU)


def test_mean_and_deviation_of_a_graph_are_told_and_may_be_set(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    photos = write_photos(tmp_path / "a", ["red", "green"])
    net = write_graph(tmp_path / "lite.onnx", "y = GlobalAveragePool (x)", "3, 1, 1")
    said = ser("learn", tmp_path / "usual", "--data", photos, "--net", net)
    assert "slda; 3 features; images with ImageNet's mean and deviation (others: net.mean" in said.err
    state, moments = tmp_path / "own", ("--set", "net.mean=0,0,0", "--set", "net.std=0.5,0.5,0.5")
    said = ser("learn", state, "--data", photos, "--net", net, *moments)
    assert "ImageNet" not in said.err
    _, model = load_model(Store(state), None, CPU)
    assert torch.equal(
        model.stored(torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)), torch.full((1, 3), 2.0)
    )
    assert ser("learn", state, "--data", photos, "--again", *moments).code == 0
    said = ser("learn", state, "--data", photos, "--again", "--set", "net.mean=1,1,1")
    assert "net.mean was fixed as [0.0, 0.0, 0.0]" in said.err
    wrong = ser("learn", tmp_path / "new", "--data", photos, "--net", net, "--set", "net.mean=0", "--set",
                "net.std=1")  # fmt: skip
    assert "a value for each channel, 3, got 1 and 1" in wrong.err
    assert "belong together" in ser("learn", tmp_path / "new", "--data", photos, *moments[:2]).err


def test_edited_code_that_gives_other_features_is_refused(tmp_path: Path, net: str) -> None:
    state, photos, said = tmp_path / "state", write_photos(tmp_path / "a", ["red", "green"]), Said()
    teach(state, photos, net__name=net, net__tune="none")
    file, number = tmp_path / "mine.py", len(list((state / FOLDER).iterdir()))
    file.write_text(MINE.replace("import torch", "import torch  # edited"))
    teach(state, photos, said)
    assert any("was edited since" in line for line in said.lines)
    assert any(line.startswith("features of 24 images by mine.py:factory in") for line in said.lines)
    assert len(list((state / FOLDER).iterdir())) == number + 1
    file.write_text(MINE.replace("nn.ReLU()", "nn.Tanh()"))
    for words in (["learn"], ["evaluate"]):
        told = ser(*words, state, "--data", photos)
        assert told.code == 2
        assert "gives other features now" in " ".join(told.err.split())
    _, parts = Store(state).read()
    del parts["model"]["backbone"]["probe"]  # as in older states
    assert "was edited since" in model_of(parts, CPU).notes[0]


@pytest.mark.parametrize("method", ["slda", "ser"])
def test_an_image_for_which_the_backbone_answers_nan_is_named(tmp_path: Path, method: str) -> None:
    (tmp_path / "mine.py").write_text(ROOT)
    net, data = f"{tmp_path / 'mine.py'}:factory", write_photos(tmp_path / "a", ["red", "green"], 4)
    with pytest.raises(
        DataError, match=r"green/00\.png: the backbone .* NaN .* for it and for 3 more images"
    ):
        teach(tmp_path / "state", data, net__name=net, net__tune="none" if method == "slda" else "head",
              learner__method=method)  # fmt: skip


def test_a_side_that_takes_gigabytes_is_refused_before_anything_is_read(tmp_path: Path, net: str) -> None:
    order = LearnRequest(tmp_path / "missing", side=1025, settings={"net.name": net})
    with pytest.raises(ConfigError, match="--side must be at most 1,024 pixels, got 1,025"):
        learn(tmp_path / "state", order, CPU)
    with pytest.raises(ConfigError, match="--side must be at most 1,024 pixels"):
        Learner(net, side=1025).learn(tmp_path / "missing")


def test_without_the_extra_photos_are_learnt_from_scratch_and_the_gain_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strongreplay.models.choice.is_installed", lambda name: False)
    said = Said()
    teach(tmp_path / "state", write_photos(tmp_path / "a", ["red", "green"], 3, side=64), said,
          net__name="auto", train__epochs=1)  # fmt: skip
    assert any("strongreplay[photos]" in line for line in said.lines)
    assert read_status(Store(tmp_path / "state")).net["name"] == "resnet18"


@pytest.mark.slow
@pytest.mark.skipif(not published.is_installed("efficientnet-lite0"), reason="needs strongreplay[photos]")
def test_photos_get_a_backbone_and_a_learner_keeps_saves_and_exports_it(tmp_path: Path) -> None:
    photos, said = write_photos(tmp_path / "a", list(COLOURS), 3, side=64), Said()
    learner = Learner(side=64, listeners=[said], val=0.0)
    learner.learn(photos)
    assert said.lines[0] == (
        "net and method: efficientnet-lite0 (64 px, frozen) with slda, because the photos have 64 pixels"
    )
    assert list(learner.predict(photos)) == [name for name in sorted(COLOURS) for _ in range(3)]
    learner.save(tmp_path / "state")
    again = Learner.load(tmp_path / "state")
    assert np.allclose(again.predict_proba(photos), learner.predict_proba(photos))
    again.learn(photos)
    assert parts_of(again.model_)["backbone"].keys() == parts_of(learner.model_)["backbone"].keys()
    assert again.export(tmp_path / "model.onnx").max_difference < 0.1
