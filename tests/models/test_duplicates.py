"""Samples met before: held-out ones are never learnt, learnt ones never judge, the memory holds each once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.kept_models import some_digits, teach, write_folder

from strongreplay.data.user_data import digests
from strongreplay.errors import DataError
from strongreplay.models.erasure import forget
from strongreplay.models.memory_view import Remembered, read_parts, samples_of
from strongreplay.models.store import Store

ONE_EPOCH: dict[str, Any] = {"train.epochs": 1}


def kept(state: Path) -> list[Remembered]:
    return samples_of(read_parts(Store(state), None)[1])


def replayed(state: Path) -> Counter[Any]:
    return Counter(one.label for one in kept(state) if one.kind == "replay")


def replayed_pictures(state: Path) -> set[str]:
    return set(digests(read_parts(Store(state), None)[1]["memory"]["samples"]["images"]))


@pytest.mark.parametrize("epochs", [1, 6])
def test_the_memory_holds_each_image_once_and_classes_alike(epochs: int, tmp_path: Path) -> None:
    settings = {"train.epochs": epochs, "learner.memory": 50, "learner.val": 0.2}
    teach(tmp_path, some_digits((0, 1), 0, 15), settings=settings)
    assert replayed(tmp_path) == {0: 12, 1: 12}  # all that were learnt fit, and each is there once
    assert len(replayed_pictures(tmp_path)) == 24
    teach(tmp_path, some_digits((2,), 0, 100), max_drop=200.0)
    assert sorted(replayed(tmp_path).values()) == [12, 12, 16]  # a large class does not push small ones out
    teach(tmp_path, some_digits((3,), 0, 10), max_drop=200.0)
    assert sorted(replayed(tmp_path).values()) == [8, 10, 11, 11]
    assert len(replayed_pictures(tmp_path)) == 40


def test_what_is_kept_depends_neither_on_epochs_nor_on_the_order_of_samples(tmp_path: Path) -> None:
    images, labels = some_digits((0, 1), 0, 40)
    rows = torch.randperm(80, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = images[rows], [labels[row] for row in rows]
    for name, data, epochs in (("a", (images, labels), 1), ("b", shuffled, 3)):
        settings = {"train.epochs": epochs, "learner.memory": 20, "learner.val": 0}
        teach(tmp_path / name, data, settings=settings)
    found = replayed_pictures(tmp_path / "a")
    assert len(found) == 20
    assert replayed_pictures(tmp_path / "b") == found
    teach(tmp_path / "a", shuffled, max_drop=200.0)  # all of it once more, under other numbers
    assert replayed_pictures(tmp_path / "a") == found
    assert len(kept(tmp_path / "a")) == 20


@pytest.mark.parametrize("store", ["raw", "jpeg"])
def test_a_folder_with_last_months_photos_again_does_not_flatter_the_gate(store: str, tmp_path: Path) -> None:
    settings = ONE_EPOCH | {"learner.memory": 30, "learner.val": 0.1, "learner.store": store}
    state = tmp_path / "model"
    teach(state, write_folder(tmp_path / "one", (0, 1), 0, 30), settings=settings)
    held = len([one for one in kept(state) if one.kind == "held-out"])
    outcome = teach(state, write_folder(tmp_path / "both", (0, 1), 0, 40), max_drop=200.0)
    assert outcome.report is not None
    assert held == 6  # 24 more are in the memory, and 30 were learnt and are kept no more
    assert outcome.report.notes == (
        f"60 of 80 samples were met before: {held} of them are held out for testing and are not learnt, "
        f"{60 - held} are learnt again and not used for testing",
    )
    # Of the 20 new photos a tenth is held out; of the old ones none is, and no held-out one is learnt.
    assert outcome.report.num_held == 2
    assert outcome.report.num_learnt == 80 - held - 2
    sources = [one.source for one in kept(state)]
    assert len(set(sources)) == len(sources) == 30


def test_only_held_out_samples_are_nothing_to_learn(tmp_path: Path) -> None:
    images, labels = some_digits((0, 1), 0, 30)
    teach(tmp_path, (images, labels), settings=ONE_EPOCH | {"learner.val": 0.2})
    held = [int(one.source[1:]) for one in kept(tmp_path) if one.kind == "held-out"]
    with pytest.raises(DataError, match="all 12 samples are held out for testing since an earlier update"):
        teach(tmp_path, (images[held], [labels[row] for row in held]))


def test_twins_in_one_folder_are_learnt_and_judge_nothing(tmp_path: Path) -> None:
    images, labels = some_digits((0,), 0, 10)
    twice = images.repeat(2, axis=0), [label for label in labels for _ in range(2)]
    outcome = teach(tmp_path, twice, settings=ONE_EPOCH | {"learner.val": 0.2})
    assert outcome.report is not None
    assert (outcome.report.num_learnt, outcome.report.num_held) == (20, 0)


def test_forgetting_a_sample_forgets_that_it_was_met(tmp_path: Path) -> None:
    data = some_digits((0, 1), 0, 30)
    teach(tmp_path, data, settings=ONE_EPOCH | {"learner.val": 0.2})
    gone = next(one for one in kept(tmp_path) if one.kind == "replay")
    before = len(read_parts(Store(tmp_path), None)[1]["held"]["learnt"])
    forget(Store(tmp_path), ids=[gone.id])
    assert len(read_parts(Store(tmp_path), None)[1]["held"]["learnt"]) == before - 1 == 47
