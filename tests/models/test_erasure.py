"""Erasure: what is forgotten is in no file, everything else is as it was, and learning goes on."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.compare import assert_same
from support.kept_models import CPU, NAMES, some_digits, stop_in_the_middle, teach, write_folder
from support.kept_models import make_model as make

from strongreplay.data import codec
from strongreplay.data.user_data import digests
from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.learner import Learner
from strongreplay.models.erasure import ErasedSamples, find, forget
from strongreplay.models.memory_view import Remembered, all_images, digests_of, read_parts, samples_of
from strongreplay.models.parts import model_of
from strongreplay.models.store import CANDIDATE, WORK, Store

STORES = ("raw", "png", "jpeg")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    return {how: make(folder / how, {"learner.store": how}) for how in STORES}


@pytest.fixture
def states(made: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    return {how: Path(shutil.copytree(path, tmp_path / how)) for how, path in made.items()}


@pytest.fixture
def state(states: dict[str, Path]) -> Path:
    return states["raw"]


def contents(state: Path) -> dict[str, bytes]:
    return {str(path.relative_to(state)): path.read_bytes() for path in state.rglob("*") if path.is_file()}


def holders(state: Path, needles: Iterable[bytes]) -> set[str]:
    wanted = list(needles)
    return {name for name, data in contents(state).items() if any(needle in data for needle in wanted)}


def remembered(state: Path, name: str | None = None) -> list[tuple[Remembered, torch.Tensor]]:
    parts = read_parts(Store(state), name)[1]
    return list(zip(samples_of(parts), all_images(parts), strict=True))


def traces(source: str, image: torch.Tensor, original: Path) -> list[bytes]:
    """Everything by which a sample could be known again."""
    first = torch.from_numpy(np.asarray(Image.open(original / source)).copy())[None]
    found = [source.encode(), json.dumps(source)[1:-1].encode()]
    for pixels in (image, first):
        rows = [row.numpy().tobytes() for row in pixels[0] if len(row.unique()) > 1]
        assert len(rows[0]) > 16
        found += [pixels.numpy().tobytes(), *rows]
        found += [*codec.encode(pixels[None], "png"), *codec.encode(pixels[None], "jpeg")]
    return found


def in_every_version(state: Path) -> list[tuple[str, torch.Tensor]]:
    """Samples that v1, v2 and the candidate all remember."""
    names = [{one.source for one, _ in remembered(state, name)} for name in ("v1", "v2", CANDIDATE)]
    shared = set.intersection(*names)
    return [(one.source, image) for one, image in remembered(state) if one.source in shared]


@pytest.mark.slow
@pytest.mark.parametrize("how", STORES)
def test_a_forgotten_sample_is_in_no_file_and_the_others_still_are(
    how: str, states: dict[str, Path], made: dict[str, Path]
) -> None:
    state, january = states[how], made[how].parent / "january"
    (source, image), (other, its_image) = in_every_version(state)[:2]
    mine, its = traces(source, image, january), traces(other, its_image, january)
    pixels = image.numpy().tobytes()
    before = holders(state, mine)
    assert {"versions/v0001.json", "versions/v0002.json", "candidate.json"} <= before
    assert len([name for name in before if name.startswith("objects/")]) == 3
    assert any(name.startswith(f"{WORK}/") for name in holders(state, [pixels]))

    erased = forget(Store(state), sources=[source])

    assert erased.stopped
    assert erased.num_samples == 1
    assert erased.versions == ("v1", "v2", CANDIDATE)
    assert not holders(state, mine)
    assert not (state / WORK).exists()
    assert {"versions/v0001.json", "versions/v0002.json", "candidate.json"} <= holders(state, its)
    assert len([name for name in holders(state, its) if name.startswith("objects/")]) == 3
    assert Store(state).verify() == []


@pytest.mark.parametrize("how", STORES)
def test_all_that_is_not_forgotten_stays_as_and_where_it_was(how: str, states: dict[str, Path]) -> None:
    state, store = states[how], Store(states[how])
    before = {name: store.read(name)[1] for name in store.names()}
    gone = {one.id for one, _ in remembered(state) if one.label == "one"}
    forget(store, labels=["one"])
    assert {name: [*parts] for name, parts in before.items()} == {
        name: [*store.read(name)[1]] for name in store.names()
    }
    for name, old in before.items():
        new = store.read(name)[1]
        for part in ("model", "net", "old_net", "method"):
            assert_same(old.get(part), new.get(part))
        for part in ("memory", "held"):
            origins = [entry for entry in old[part]["samples"]["origins"] if entry[2] != "one"]
            assert new[part]["samples"]["origins"] == origins
        kept = [row for row, entry in enumerate(old["memory"]["samples"]["origins"]) if entry[2] != "one"]
        for column, values in old["memory"]["columns"].items():
            assert torch.equal(
                values[kept].nan_to_num(-1e9), new["memory"]["columns"][column].nan_to_num(-1e9)
            )
        assert new["memory"]["extra"]["num_seen"] == old["memory"]["extra"]["num_seen"]
        assert new["memory"]["extra"]["num_filled"] == len(kept)
        assert torch.equal(new["memory"]["extra"]["generator"], old["memory"]["extra"]["generator"])
        assert torch.equal(all_images(new), all_images(old)[[o.label != "one" for o in samples_of(old)]])
    assert gone
    assert not gone & {one.id for one, _ in remembered(state)}


def test_answers_do_not_change(state: Path) -> None:
    store, inputs = Store(state), torch.from_numpy(some_digits((0, 1, 2), 60, 5)[0])[:, None]
    before = {name: model_of(store.read(name)[1], CPU).scores(inputs) for name in store.names()}
    forget(store, labels=["zero"])
    for name, scores in before.items():
        assert torch.equal(model_of(store.read(name)[1], CPU).scores(inputs), scores)


@pytest.mark.parametrize("how", STORES)
def test_learning_goes_on_and_the_memory_fills_up_again(
    how: str, states: dict[str, Path], tmp_path: Path
) -> None:
    state = states[how]
    forget(Store(state), labels=["zero", "one"])
    left = len(remembered(state))
    assert teach(state, write_folder(tmp_path / "may", (4, 0), 60, 20), max_drop=200.0).version
    parts = read_parts(Store(state), None)[1]
    assert len(samples_of(parts)) > left
    assert {one.label for one in samples_of(parts)} == {"zero", "two", "four"}
    assert len({*digests_of(parts)}) == len({one.id for one in samples_of(parts)})


@pytest.mark.parametrize("method", ["ser", "er", "der", "derpp", "clser"])
def test_every_method_goes_on_after_all_was_forgotten(method: str, tmp_path: Path) -> None:
    state = tmp_path / "model"
    settings = {"learner.method": method, "learner.memory": 20, "learner.val": 0.2}
    teach(state, write_folder(tmp_path / "one", (0, 1), 0, 10), settings=settings)
    erased = forget(Store(state), labels=["zero", "one"])
    assert erased.num_samples > 10
    assert remembered(state) == []
    outcome = teach(state, write_folder(tmp_path / "two", (2, 1), 20, 10))
    assert outcome.version
    assert len(remembered(state)) > 3
    assert {one.update for one, _ in remembered(state)} == {2}


def test_copies_go_too_whatever_they_are_called(tmp_path: Path) -> None:
    state, names = tmp_path / "model", ("left", "right")
    settings = {"learner.memory": 60, "learner.val": 0.2}
    teach(state, write_folder(tmp_path / "base", (0, 1), 0, 8), settings=settings)
    for name in names:
        folder = write_folder(tmp_path / name, (2,), 0, 8)
        for path in folder.rglob("*.png"):
            path.rename(path.with_name(f"{name}-{path.name}"))
        write_folder(folder, (3,), len(name), 3)  # or the second data would be the first
        assert teach(state, folder, max_drop=200.0).version
        if name == "left":
            Store(state).rollback("v1", {"act": "rollback"})
    left, right = ([one.source for one, _ in remembered(state, version)] for version in ("v2", "v3"))
    twin = next(
        source
        for source in left
        if source.startswith("two/left") and source.replace("left", "right", 1) in right
    )
    images = {one.source: image for one, image in remembered(state, "v2")}
    needles = [images[twin].numpy().tobytes(), twin.encode(), twin.replace("left", "right", 1).encode()]
    assert len(holders(state, needles)) >= 4
    erased = forget(Store(state), sources=[twin])
    assert erased.versions == ("v2", "v3")
    assert not holders(state, needles)


@pytest.mark.slow
@pytest.mark.parametrize("how", STORES)
def test_copies_in_one_chunk_are_two_samples_and_go_together(how: str, tmp_path: Path) -> None:
    state, folder = tmp_path / "model", write_folder(tmp_path / "photos", (0, 1), 0, 10)
    for path in list(folder.rglob("*.png")):
        shutil.copy(path, path.with_name(f"copy-of-{path.name}"))
    teach(state, folder, settings={"learner.memory": 60, "learner.store": how})
    rows, original = remembered(state), "zero/photo-zero-3.png"
    twins = {one.source: (one.id, image) for one, image in rows if one.source.endswith("photo-zero-3.png")}
    assert [*sorted(twins)] == ["zero/copy-of-photo-zero-3.png", original]
    assert len({number for number, _ in twins.values()}) == 2
    needles = [*traces(original, twins[original][1], folder), b"copy-of-photo-zero-3.png"]
    assert holders(state, needles)
    found = find(Store(state), [], [], [twins[original][0]])
    assert (len(found.samples), found.num_copies) == (2, 1)
    assert forget(Store(state), ids=[twins[original][0]]).num_samples == 2
    assert not holders(state, needles)


def test_an_id_is_not_given_again_after_a_rollback(tmp_path: Path) -> None:
    state = tmp_path / "model"
    teach(state, write_folder(tmp_path / "base", (0, 1), 0, 8), settings={"learner.memory": 60})
    teach(state, write_folder(tmp_path / "two", (2,), 0, 8), max_drop=200.0)
    Store(state).rollback("v1", {"act": "rollback"})
    teach(state, write_folder(tmp_path / "three", (3,), 0, 8), max_drop=200.0)
    twos = {one.id for one, _ in remembered(state, "v2") if one.label == "two"}
    threes = {one.id for one, _ in remembered(state, "v3") if one.label == "three"}
    assert twos
    assert threes
    assert not twos & threes


def test_a_number_means_the_sample_of_the_version_in_use(tmp_path: Path) -> None:
    """Two learners that know nothing of each other give their samples the same ids."""
    state = tmp_path / "model"
    for digit in (2, 3):
        images, _ = some_digits((digit,), 0, 8)
        learner = Learner(net="mlp", memory=60, epochs=1, device="cpu")
        learner.learn(images, [NAMES[digit]] * 8)
        learner.save(state)
    twos, threes = ({one.id for one, _ in remembered(state, name)} for name in ("v1", "v2"))
    number = min(twos & threes)
    assert forget(Store(state), ids=[number]).versions == ("v2",)
    assert number in {one.id for one, _ in remembered(state, "v1")}
    assert number not in {one.id for one, _ in remembered(state, "v2")}


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    state, (images, labels) = tmp_path / "model", some_digits((3, 7), 0, 10)
    teach(state, (images, labels), settings={"learner.memory": 30})
    assert {one.label for one, _ in remembered(state)} == {3, 7}
    forget(Store(state), labels=["3"])
    assert {one.label for one, _ in remembered(state)} == {7}
    forget(Store(state), labels=[7])
    assert remembered(state) == []


@pytest.mark.slow
def test_a_source_may_be_a_folder_or_an_array_file(tmp_path: Path, state: Path) -> None:
    forget(Store(state), sources=["one/"])
    assert {one.label for one, _ in remembered(state)} == {"zero", "two"}
    with pytest.raises(ConfigError, match="no remembered sample"):
        forget(Store(state), sources=["zer", "two/photo"])  # the beginning of a name is no folder
    images, labels = some_digits((3, 7), 0, 10)
    np.savez(tmp_path / "scan.npz", images=images, labels=np.array(labels))
    teach(tmp_path / "model", tmp_path / "scan.npz", settings={"learner.memory": 30})
    forget(Store(tmp_path / "model"), sources=["scan.npz"])
    assert remembered(tmp_path / "model") == []


def test_features_are_forgotten_like_images(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    features, state = draws.normal(size=(40, 6)).astype(np.float32), tmp_path / "model"
    teach(state, (features, ["a"] * 20 + ["b"] * 20), settings={"learner.memory": 30})
    kept = remembered(state)
    needle = kept[0][1].numpy().tobytes()
    assert holders(state, [needle])
    forget(Store(state), ids=[kept[0][0].id])
    assert not holders(state, [needle])
    assert holders(state, [kept[1][1].numpy().tobytes()])
    assert teach(state, (draws.normal(size=(20, 6)).astype(np.float32), ["c"] * 20)).version


def test_notes_that_name_a_forgotten_source_go(made: dict[str, Path], tmp_path: Path) -> None:
    state, photos = tmp_path / "model", made["raw"].parent
    teach(state, photos / "january", settings={"learner.memory": 40})
    teach(state, photos / "february", guard=photos / "january", max_drop=200.0)
    (note,) = Store(state).read(None, parts=())[0].about["notes"]
    source = note.partition("such as ")[2].partition(";")[0]
    assert source in {one.source for one, _ in remembered(state, "v1")}
    forget(Store(state), sources=[source])
    assert not holders(state, [source.encode()])


def test_the_history_tells_what_was_done_and_not_to_whom(state: Path) -> None:
    one, _ = remembered(state)[0]
    erased = forget(Store(state), sources=[one.source])
    line = Store(state).history()[-1]
    assert line["act"] == "forget"
    assert line["samples"] == 1
    assert line["ids"] == list(erased.ids) == [one.id]
    assert line["changed"] == list(erased.versions)
    assert line["version"] == "v2"
    assert one.source not in json.dumps(line)


@pytest.mark.parametrize("how", STORES)
def test_a_file_names_the_samples_with_its_pixels(
    how: str, states: dict[str, Path], made: dict[str, Path]
) -> None:
    state, original = states[how], made[how].parent / "january"
    before = remembered(state)
    one, image = next(row for row in before if (original / row[0].source).exists())
    file = shutil.copy(original / one.source, state.parent / "renamed.png")
    needles = traces(one.source, image, original)
    assert holders(state, needles)
    erased = forget(Store(state), photos=[Path(file)])
    assert one.id in erased.ids
    assert not holders(state, needles)
    assert len(remembered(state)) == len([row for row, _ in before if row.id != one.id])
    with pytest.raises(ConfigError, match="no remembered sample"):
        forget(Store(state), photos=[Path(file)])


def test_where_nothing_matches_nothing_is_changed(state: Path) -> None:
    before = contents(state)
    wrong: list[dict[str, Any]] = [{}, {"labels": ["seven"]}, {"sources": ["one/none.png"]}, {"ids": [10**6]}]
    for names in wrong:
        with pytest.raises(ConfigError):
            forget(Store(state), **names)
        assert contents(state) == before


def test_a_refusal_or_a_damaged_version_changes_nothing(state: Path) -> None:
    def refuse(found: ErasedSamples) -> None:
        assert found.stopped
        assert {one.label for one in found.samples.values()} == {"two"}
        raise KeyboardInterrupt

    before = contents(state)
    with pytest.raises(KeyboardInterrupt):
        forget(Store(state), labels=["two"], confirm=refuse)
    assert contents(state) == before
    path = state / "versions" / "v0001.json"
    path.write_bytes(path.read_bytes()[:-9])
    before = contents(state)
    with pytest.raises(DataError, match="v0001"):
        forget(Store(state), labels=["two"])
    assert contents(state) == before


def test_a_folder_without_a_model_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model is kept there"):
        forget(Store(tmp_path / "none"), labels=["a"])
    assert list(tmp_path.iterdir()) == []


def test_what_was_stopped_can_be_learnt_afresh(state: Path, made: dict[str, Path]) -> None:
    april = made["raw"].parent / "april"
    forget(Store(state), labels=["zero"])
    stop_in_the_middle(state, april)
    assert teach(state, april, max_drop=200.0).version


def test_a_work_folder_that_cannot_be_removed_stops_all(state: Path, tmp_path: Path) -> None:
    shutil.move(state / WORK, tmp_path / "elsewhere")
    (state / WORK).symlink_to(tmp_path / "elsewhere")
    one, _ = remembered(state)[0]
    with pytest.raises((RunError, DataError)):
        forget(Store(state), ids=[one.id])
    assert one.source in {other.source for other, _ in remembered(state)}
    assert (tmp_path / "elsewhere").is_dir()


def test_what_is_found_is_told_by_sample_and_version(state: Path) -> None:
    found = find(Store(state), ["two"], [], [])
    assert found.versions == (CANDIDATE, "v2")
    rows = [(one, image) for one, image in remembered(state) if one.label == "two"]
    assert {one.id for one, _ in rows} <= {*found.ids}
    assert {*digests(torch.stack([image for _, image in rows]))} <= found.pictures
    assert found.num_copies == 0


def test_what_a_killed_erasure_left_unnamed_goes_when_it_is_repeated(state: Path) -> None:
    one, image = remembered(state)[0]
    needle = image.numpy().tobytes()
    old = {path: path.read_bytes() for path in (state / "objects").iterdir() if needle in path.read_bytes()}
    forget(Store(state), ids=[one.id])
    for path, data in old.items():
        path.write_bytes(data)  # as if it had been killed after the last manifest
    assert holders(state, [needle])
    with pytest.raises(ConfigError):
        forget(Store(state), sources=[one.source])
    assert not holders(state, [needle])


def test_an_origin_that_makes_no_sense_is_refused_and_nothing_is_changed(state: Path) -> None:
    def forge(tree: Any) -> Any:
        (number, source, _, lesson), *others = tree["samples"]["origins"]
        return tree | {"samples": tree["samples"] | {"origins": [[number, source, ["x"], lesson], *others]}}

    Store(state).rewrite(["memory"], forge, {"act": "test"})
    before = contents(state)
    with pytest.raises(DataError, match="do not fit together"):
        forget(Store(state), labels=["two"])
    assert contents(state) == before
