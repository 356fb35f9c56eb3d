"""A model in parts and back: equal to the bit, with ids beside the rows; it answers without samples."""

from pathlib import Path

import pytest
import torch
from support.compare import assert_same
from support.kept_models import CPU, make_model, some_digits

from strongreplay.errors import DataError
from strongreplay.models.parts import TO_ANSWER, model_of, parts_of, sample_bytes, tree_bytes
from strongreplay.models.store import Store


@pytest.fixture(scope="module", params=["raw", "png", "jpeg"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder: Path = tmp_path_factory.mktemp("parts")
    return Store(make_model(folder, {"learner.store": request.param}))


def test_a_model_that_is_put_together_has_the_same_parts(store: Store) -> None:
    parts = store.read()[1]
    assert_same(parts_of(model_of(parts, CPU)), parts)


def test_every_row_has_the_id_that_its_origin_begins_with(store: Store) -> None:
    parts = store.read()[1]
    model = model_of(parts, CPU)
    pairs = zip((parts["memory"], parts["held"]), model.kept_samples(), strict=True)
    for part, (images, ids) in pairs:
        assert len(images) == len(ids)
        assert ids.tolist() == [entry[0] for entry in part["samples"]["origins"]]
    assert set(model.samples.origins) == {n for _, ids in model.kept_samples() for n in ids.tolist()}


def test_three_parts_are_enough_to_answer(store: Store) -> None:
    inputs = torch.from_numpy(some_digits((0, 1, 2), 40, 5)[0])[:, None]
    whole, thin = model_of(store.read()[1], CPU), model_of(store.read(None, TO_ANSWER)[1], CPU)
    assert whole.whole
    assert not thin.whole
    assert torch.equal(whole.scores(inputs), thin.scores(inputs))


def test_bytes_of_samples_are_those_of_the_tensors_that_are_kept(store: Store) -> None:
    parts = store.read()[1]
    memory = parts["memory"]
    expected = {
        "held": tree_bytes({key: parts["held"][key] for key in ("samples", "columns", "keys")}),
        "memory": tree_bytes(memory["samples"]) + tree_bytes(memory["columns"]),
    }
    assert sample_bytes(model_of(parts, CPU)) == expected


@pytest.mark.parametrize("part", ["held", "memory"])
def test_labels_that_no_class_has_are_refused(part: str, store: Store) -> None:
    """A signed version may hold anything; an update would stop with an IndexError in its middle."""
    parts = store.read()[1]
    columns = parts["held"] if part == "held" else parts["memory"]["columns"]
    name = "columns" if part == "held" else "labels"
    columns[name] = columns[name].clone()
    columns[name][0] = 3
    with pytest.raises(DataError, match="labels outside 0 to 2"):
        model_of(parts, CPU)
