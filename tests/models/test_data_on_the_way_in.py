"""ser learn and Learner with data as users have them: parts, bad files, capitals, single images, costs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.kept_models import QUICK, make_model, ser, some_digits, teach, write_folder

from strongreplay.errors import ConfigError, DataError
from strongreplay.learner import Learner
from strongreplay.models.settings import check_used, make_settings
from strongreplay.models.store import Store
from strongreplay.training.events import Listener

WORDS = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]


class Told(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, text: str) -> None:
        self.texts.append(text)


def test_the_part_val_guards_and_test_is_left_alone(tmp_path: Path) -> None:
    for part, start in (("train", 0), ("val", 30), ("test", 40)):
        write_folder(tmp_path / "data" / part, (0, 1), start, 8)
    said = ser("learn", tmp_path / "state", "--data", tmp_path / "data", *WORDS)
    assert said.code == 0, said.err
    told = " ".join(said.err.split())
    assert "the part train is learnt; val is the guard set and is never learnt; test is left alone" in told
    assert "read 16 samples of 2 classes" in told
    assert "images of 1 x 20 x 20: net mlp of width 16, method ser, 2 epochs of 1 steps" in told
    about = Store(tmp_path / "state").read(parts=())[0].about
    assert {(change["where"], change["count"]) for change in about["changes"]} == {("guard", 8)}
    write_folder(tmp_path / "more" / "val", (1,), 50, 3)
    write_folder(tmp_path / "more" / "train", (1,), 53, 3)
    outcome = teach(tmp_path / "state", tmp_path / "more", guard=tmp_path / "data" / "val")
    assert outcome.report is not None
    assert {(c.where, c.count) for c in outcome.report.verdict.changes if c.where == "guard"} == {
        ("guard", 8)
    }


def test_bad_files_and_capitals_stop_ser_learn_until_it_is_told(tmp_path: Path) -> None:
    data, state = write_folder(tmp_path / "data", (0, 1), 0, 8), tmp_path / "state"
    (data / "Zero").mkdir()
    (data / "zero" / "photo-zero-0.png").rename(data / "Zero" / "1.png")
    for number in (1, 2):
        (data / "zero" / f"photo-zero-{number}.png").write_bytes(b"broken")
    words = ("learn", state, "--data", data, *WORDS)
    said = ser(*words)
    assert said.code == 1
    assert "2 files cannot be read" in said.err
    assert "photo-zero-1.png" in said.err
    assert "photo-zero-2.png" in said.err
    said = ser(*words, "--skip-bad")
    assert said.code == 1
    assert "'Zero' and 'zero' differ in capitals only" in " ".join(said.err.split())
    assert not (state / "versions").exists()
    assert ser(*words, "--skip-bad", "--merge-case", "--keep-case").code == 2
    said = ser(*words, "--skip-bad", "--merge-case")
    assert said.code == 0, said.err
    note, first, second, *_ = said.err.splitlines()
    assert note.endswith("2 of 16 files skipped:")
    assert first.startswith("  ")
    assert first.endswith(
        "photo-zero-1.png is not an image, expected JPEG, PNG, WebP, BMP, TIFF or GIF; "
        "replace the file or take it out"
    )
    assert "photo-zero-2.png is not an image" in second
    assert Store(state).read(parts=())[0].about["labels"] == ["Zero", "one"]
    said = ser("learn", state, "--data", data, "--skip-bad", "--keep-case")
    assert Store(state).read(parts=())[0].about["labels"] == ["Zero", "one", "zero"], said.err


def test_evaluate_takes_the_test_part_and_goes_on_without_bad_files_if_it_may(tmp_path: Path) -> None:
    learnt = write_folder(tmp_path / "data" / "train", (0, 1), 0, 8)
    test = write_folder(tmp_path / "data" / "test", (0, 1), 20, 4)
    teach(tmp_path / "state", learnt)
    words = ("evaluate", tmp_path / "state", "--data", tmp_path / "data")
    said = ser(*words)
    assert said.code == 0, said.err
    assert "has the parts test, train; test is evaluated" in " ".join(said.err.split())
    assert "of 8 right" in said.out
    result = Learner.load(tmp_path / "state").evaluate(tmp_path / "data")
    assert sum(result.counts.values()) == 8
    assert "test is evaluated" in str(result.note)
    for number in (20, 21):
        (test / "zero" / f"photo-zero-{number}.png").write_bytes(b"broken")
    said = ser(*words)
    assert said.code == 1
    assert "go on without them: --skip-bad" in said.err
    said = ser(*words, "--skip-bad")
    assert said.code == 0, said.err
    assert "of 6 right" in said.out
    assert "2 of 8 files skipped" in said.err
    (test / "two").symlink_to(learnt / "zero")
    said = ser(*words, "--skip-bad")
    assert "allow it with --allow-outside" in said.err
    assert "of 14 right" in ser(*words, "--skip-bad", "--allow-outside").out
    counts = Learner.load(tmp_path / "state").evaluate(test, skip_bad=True, allow_outside=True).counts
    assert counts == {"one": 4, "two": 8, "zero": 2}


def test_a_learner_answers_images_and_paths_one_by_one(tmp_path: Path) -> None:
    folder, told = write_folder(tmp_path / "data", (0, 1), 0, 8), Told()
    learner = Learner("mlp", "er", 20, epochs=2, device="cpu", listeners=[told])
    learner.learn(folder)
    paths = sorted(folder.rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    expected = learner.predict(pixels).tolist()
    pictures = [Image.open(path) for path in paths]
    assert learner.predict(pictures[3]).tolist() == expected[3:4]
    assert learner.predict(pictures).tolist() == expected
    assert learner.predict(paths[3]).tolist() == learner.predict(str(paths[3])).tolist() == expected[3:4]
    assert learner.predict(paths).tolist() == learner.predict(folder).tolist() == expected
    assert learner.predict_proba(pictures[0]).shape == (1, 2)
    with pytest.raises(DataError, match=r"2 files cannot be read:\n.*none.png(.|\n)*also.png"):
        learner.predict([paths[0], tmp_path / "none.png", tmp_path / "also.png"])
    images = some_digits((0,), 20, 4)[0]
    with pytest.raises(DataError, match="'zero' and 'Zero' differ in capitals only"):
        learner.learn(images, ["Zero"] * 4)
    learner.set_params(case="merge").learn(images, ["Zero"] * 4)
    assert learner.classes_.tolist() == ["one", "zero"]


def test_an_array_of_one_image_has_one_answer_and_an_unclear_one_is_an_error(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    photos = draws.integers(0, 256, (8, 20, 20, 3), dtype=np.uint8)
    photos[:4] //= 4  # dark ones
    learner = Learner("mlp", "er", 20, epochs=2, device="cpu")
    learner.learn(photos, ["dark"] * 4 + ["light"] * 4)
    learner.save(tmp_path / "state")
    expected = learner.predict(photos).tolist()
    for row in (0, 7):
        one, upright = photos[row], torch.from_numpy(photos[row]).permute(2, 0, 1)
        for form in (one, (one / 255).tolist(), torch.from_numpy(one), upright, (upright / 255.0).tolist()):
            assert learner.predict(form).tolist() == expected[row : row + 1]
        assert np.allclose(learner.predict_proba(one), learner.predict_proba(photos)[row])
    assert learner.predict(draws.integers(0, 256, (30, 26, 3), dtype=np.uint8)).shape == (1,)
    assert learner.predict(draws.integers(0, 256, (7, 20, 20), dtype=np.uint8)).shape == (7,)  # grey ones
    for shape in ((3, 30, 30), (3, 30, 3), (30, 30, 1), (1, 30, 3)):
        array = np.zeros(shape, np.uint8)
        remedy = rf"may be one image or {shape[0]} grey ones; give array\[None\] if it is one"
        with pytest.raises(DataError, match=remedy):
            learner.predict(array)
        assert learner.predict(array[None]).shape == (1,)
        assert learner.predict(array[:, None]).shape == shape[:1]
    for name, array in {"one": photos[5], "grey": photos[..., 0], "unclear": photos[0, :3]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    said = ser("predict", tmp_path / "state", tmp_path / "one.npy")
    assert [line.split()[1] for line in said.lines] == expected[5:6]
    assert len(ser("predict", tmp_path / "state", tmp_path / "grey.npy", "--batch-size", "3").lines) == 8
    said = ser("predict", tmp_path / "state", tmp_path / "unclear.npy")
    assert (said.code, said.lines) == (1, [])
    assert "unclear.npy: shape (3, 20, 3) may be one image or 3 grey ones" in " ".join(said.err.split())


def test_a_grey_model_takes_an_array_of_three_dimensions_as_several_images() -> None:
    images = some_digits((0, 1), 0, 4)[0]
    learner = Learner("mlp", "er", 20, epochs=2, device="cpu")
    learner.learn(images, ["zero"] * 4 + ["one"] * 4)
    answers = learner.predict(images).tolist()
    assert learner.predict(images[:3]).tolist() == answers[:3]
    assert (
        learner.predict(images[0][None]).tolist()
        == learner.predict(images[0][..., None]).tolist()
        == answers[:1]
    )
    with pytest.raises(DataError, match="may be one image or 20 grey ones"):
        learner.predict(np.repeat(images[0][..., None], 3, 2))


def test_settings_that_a_method_ignores_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path)
    with pytest.raises(ConfigError, match=r"train.first_epochs"):
        teach(tmp_path / "model", tmp_path / "april", settings={"train.first_epochs": 3})
    ser_alone, slda = make_settings({}), make_settings({"learner.method": "slda"})
    check_used({"train.epochs": 3, "learner.val": 0.1}, ser_alone)
    check_used({"train.batch_size": 3, "learner.val": 0.1, "learner.correction": None}, slda)
    with pytest.raises(ConfigError, match=r"train.epochs, train.lr has no effect with slda"):
        check_used({"train.epochs": 3, "learner.val": 0.1, "train.lr": 0.1}, slda)


@pytest.mark.parametrize(
    ("settings", "is_features", "message"),
    [
        ({"net.name": "cnn", "net.tune": "none"}, False, "net.tune has no effect with net cnn, all of which"),
        ({"net.name": "cnn", "net.tune": "all"}, False, "net.tune has no effect with net cnn, all of which"),
        ({"net.name": "mlp", "net.body_rate": 0.5}, False, "net.body_rate has no effect with net mlp"),
        (
            {"net.name": "f.onnx", "net.tune": "head", "net.body_rate": 1.0},
            True,
            "a frozen body; leave it out",
        ),
        (
            {"learner.method": "slda", "learner.correction": 3},
            True,
            "correction has no effect with slda, which",
        ),
        ({"learner.method": "ncm", "learner.sampling": "balanced"}, True, "sampling has no effect with ncm"),
        ({"learner.augment": "crop"}, True, "learner.augment has no effect with features"),
        ({"learner.store": "jpeg"}, True, "learner.store has no effect with features"),
    ],
)
def test_settings_that_a_net_ignores_are_refused(
    settings: dict[str, Any], is_features: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_used(settings, make_settings(settings), is_features)


def test_the_words_of_tune_are_named_as_they_are_typed() -> None:
    with pytest.raises(ConfigError, match="tune must be none, head or all, got 'bogus'; give one of them"):
        make_settings({"net.name": "efficientnet-lite0", "net.tune": "bogus"})
    for typed, kept in (("none", "nothing"), ("head", "head"), ("all", "all"), (None, None)):
        assert make_settings({"net.tune": typed}).net.tune == kept


def test_a_learner_refuses_what_was_given_and_not_its_defaults(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 24, 24, 3), dtype=np.uint8)
    labels = ["a"] * 6 + ["b"] * 6
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef factory(input_shape, num_classes):\n    return nn.Sequential("
        "nn.Conv2d(3, 4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))\n"
    )
    net: dict[str, Any] = {
        "net": f"{tmp_path / 'mine.py'}:factory",
        "side": 24,
        "method": "slda",
        "device": "cpu",
    }
    wrong: list[dict[str, Any]] = [
        {"epochs": 3}, {"lr": 3.0}, {"settings": {"learner.correction": 3}}, {"augment": "crop"}
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(ConfigError, match="has no effect with"):
            Learner(**net, **given).learn(images, labels)
    learner = Learner(**net)
    learner.learn(images, labels)
    learner.save(tmp_path / "state")
    again = Learner.load(tmp_path / "state")
    again.learn(images[:6] // 2, ["c"] * 6)
    assert again.fit(images, labels).classes_.tolist() == ["a", "b"]
    with pytest.raises(ConfigError, match="tune has no effect with net mlp"):
        Learner("mlp", settings={"net.tune": "none"}).learn(images, labels)
