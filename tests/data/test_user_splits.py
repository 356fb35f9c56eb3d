"""A user's own data: read once, kept, held out, hashed; what is wrong with them is named."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from strongreplay.data import datasets, images, user_splits
from strongreplay.data.archives import Bytes
from strongreplay.data.mapped import MappedRows
from strongreplay.data.streams import StreamOptions, build_stream, describe_stream
from strongreplay.data.user_splits import UserSplits, open_user_splits
from strongreplay.errors import ConfigError, DataError

NAMES = ("ant", "bee", "cat", "dog", "emu", "fox")


def draw(folder: Path, names: tuple[str, ...] = NAMES, count: int = 10, start: int = 0) -> Path:
    """Photos of one shade for each class."""
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for row in range(start, start + count):
            pixels = np.full((12, 16, 3), 40 * number + row, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{row}.png")
    return folder


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., UserSplits]:
    def call(name: str, **options: float) -> UserSplits:
        return open_user_splits(name, tmp_path / "cache", **options)  # type: ignore[arg-type]

    return call


def test_class_folders_hold_out_a_fixed_share_of_each_class(
    tmp_path: Path, load: Callable[..., UserSplits]
) -> None:
    draw(tmp_path / "photos")
    data = load(f"folder:{tmp_path / 'photos'}")
    assert data.names == NAMES
    assert data.train.labels.bincount().tolist() == [8] * 6
    assert data.test.labels.bincount().tolist() == [2] * 6
    assert data.train.inputs.shape == (48, 3, 12, 12)
    for split in (data.train, data.test):
        shades = split.inputs.flatten(1).float().mean(1)
        assert torch.equal((shades / 40).long(), split.labels)
    again = load(f"folder:{tmp_path / 'photos'}")
    assert torch.equal(again.test.inputs, data.test.inputs)
    assert load(f"folder:{tmp_path / 'photos'}", test=0.5).test.labels.bincount().tolist() == [5] * 6
    assert load(f"folder:{tmp_path / 'photos'}", side=8).train.inputs.shape[1:] == (3, 8, 8)


def test_a_test_part_is_taken_as_it_is(tmp_path: Path, load: Callable[..., UserSplits]) -> None:
    draw(tmp_path / "photos" / "train")
    draw(tmp_path / "photos" / "test", count=3, start=20)
    name = f"folder:{tmp_path / 'photos'}"
    data = load(name)
    assert (len(data.train), len(data.test)) == (60, 18)
    with pytest.raises(ConfigError, match=r"data\.test: folder:.* has a test part of its own"):
        load(name, test=0.5)


def test_photos_are_decoded_once_and_again_when_they_change(
    tmp_path: Path, load: Callable[..., UserSplits], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(tmp_path / "photos")
    name, read = f"folder:{tmp_path / 'photos'}", list[Path]()
    original = images.read_image

    def count(path: Path, side: int, channels: int) -> Bytes:
        read.append(path)
        return original(path, side, channels)

    monkeypatch.setattr(images, "read_image", count)
    first = load(name).hash
    assert len(read) == 60
    assert load(name).hash == first
    assert len(read) == 60
    draw(tmp_path / "photos", ("ant",), count=1, start=99)
    assert load(name).hash != first  # other photos under the same name
    (tmp_path / "photos" / "ant" / "99.png").unlink()
    assert load(name).hash == first
    assert len(list((tmp_path / "cache" / "own").glob("*/about.json"))) == 1  # of one source, one is kept


@pytest.mark.parametrize("kind", ["csv", "npz", "npy"])
def test_manifests_and_arrays_are_streams_too(
    tmp_path: Path, load: Callable[..., UserSplits], kind: str
) -> None:
    inputs = np.random.default_rng(0).random((40, 5), np.float32)
    labels = np.array(["b", "a", "d", "c"] * 10)
    if kind == "csv":
        draw(tmp_path, count=4)
        lines = ["path,label", *(f"{name}/{row}.png,{name}" for name in NAMES for row in range(4))]
        (tmp_path / "data").write_text("\n".join(lines))
    elif kind == "npz":
        np.savez(tmp_path / "data.npz", inputs=inputs, labels=labels)
        (tmp_path / "data.npz").rename(tmp_path / "data")
    else:
        (tmp_path / "data").mkdir()
        np.save(tmp_path / "data/inputs.npy", inputs)
        np.save(tmp_path / "data/labels.npy", labels)
    data = load(f"{kind}:{tmp_path / 'data'}")
    assert data.names == (NAMES if kind == "csv" else ("a", "b", "c", "d"))
    if kind != "csv":
        rows = torch.cat([data.train.inputs, data.test.inputs]).sort(0).values
        assert torch.equal(rows, torch.from_numpy(inputs).sort(0).values)
        assert len(data.test) == 8


def test_large_arrays_stay_on_disk(
    tmp_path: Path, load: Callable[..., UserSplits], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_splits, "MAPPED_SIZE", 100)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 6, 6), np.uint8)
    labels = np.arange(40) % 4
    for part, rows in (("", slice(0, 30)), ("test-", slice(30, 40))):
        np.save(tmp_path / f"{part}inputs.npy", pixels[rows])
        np.save(tmp_path / f"{part}labels.npy", labels[rows])
    data = load(f"npy:{tmp_path}")
    assert isinstance(data.train.inputs, MappedRows)
    assert data.train.inputs.shape == (30, 1, 6, 6)
    assert np.array_equal(data.train.inputs.clone().numpy()[:, 0], pixels[:30])
    assert np.array_equal(data.test.inputs.clone().numpy()[:, 0], pixels[30:])
    with pytest.raises(ConfigError, match=r"data\.side: npy:.* is taken as it is"):
        load(f"npy:{tmp_path}", side=8)


def test_what_is_wrong_is_named(tmp_path: Path, load: Callable[..., UserSplits]) -> None:
    with pytest.raises(DataError, match=r"none is missing; check the path after folder:"):
        load(f"folder:{tmp_path / 'none'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty must hold a folder for each class, got none"):
        load(f"folder:{tmp_path / 'empty'}")
    draw(tmp_path / "one", ("ant",))
    with pytest.raises(DataError, match="must have at least 2 classes, got ant; add a class"):
        load(f"folder:{tmp_path / 'one'}")
    draw(tmp_path / "single", ("ant", "bee"), count=1)
    with pytest.raises(DataError, match="class 'ant' has 1 sample, and one must be held out"):
        load(f"folder:{tmp_path / 'single'}")
    draw(tmp_path / "parts" / "train", ("ant", "bee"))
    draw(tmp_path / "parts" / "test", ("ant",))
    with pytest.raises(DataError, match="class bee has no test samples; give both parts all classes"):
        load(f"folder:{tmp_path / 'parts'}")
    draw(tmp_path / "parts" / "test", ("bee", "cat"))
    with pytest.raises(DataError, match="class cat has test samples only; give both parts all classes"):
        load(f"folder:{tmp_path / 'parts'}")
    (tmp_path / "single" / "ant" / "bad.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad.png is not an image"):
        load(f"folder:{tmp_path / 'single'}")
    with pytest.raises(DataError, match=r"\.npz is missing"):
        load(f"npz:{tmp_path / 'none.npz'}")


def test_a_stream_of_own_data_is_normalised_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "default_folder", lambda: tmp_path / "cache")
    name = f"folder:{draw(tmp_path / 'photos')}"
    stream = build_stream(name, 3, options=StreamOptions(num_tasks=4, order=("shuffled",)))
    assert [len(classes) for classes in stream.task_classes] == [2, 2, 1, 1]
    assert stream.label_names is not None
    assert sorted(stream.label_names) == list(NAMES)
    seen = torch.cat([stream.test_view(task.train.inputs) for task in stream])
    assert abs(float(seen.mean())) < 1e-4
    assert float(seen.std()) == pytest.approx(1, abs=1e-2)
    for task in stream:
        for label in task.classes:
            shades = task.train.inputs[task.train.labels == label].flatten(1).float().mean(1)
            assert {NAMES[int(shade / 40)] for shade in shades} == {stream.label_names[label]}
    given = build_stream(name, 0, options=StreamOptions(order=tuple(reversed(NAMES)), num_tasks=6))
    assert given.label_names == tuple(reversed(NAMES))
    info = describe_stream(name, StreamOptions(num_tasks=4))
    assert info.num_train == (16, 16, 8, 8)
    assert info.hash == json.loads(next((tmp_path / "cache").glob("own/*/about.json")).read_text())["hash"]
    with pytest.raises(ConfigError, match="6 classes cannot be divided into 7 tasks; use 1 to 6 tasks"):
        describe_stream(name, StreamOptions(num_tasks=7))


@pytest.mark.parametrize(
    "change",
    [
        {"num_train": -3},
        {"num_train": 99},
        {"num_train": "2"},
        {"names": ["a"]},
        {"names": [1, 2]},
        {"hash": ...},
    ],
)
def test_a_cache_folder_that_does_not_fit_is_named(
    change: dict[str, object], tmp_path: Path, load: Callable[..., UserSplits]
) -> None:
    draw(tmp_path / "photos", NAMES[:2])
    load(f"folder:{tmp_path / 'photos'}")
    (path,) = tmp_path.rglob("about.json")
    about = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in about.items() if value is not ...}))
    with pytest.raises(DataError, match=f"{path.parent.name} .*; remove it"):
        load(f"folder:{tmp_path / 'photos'}")
