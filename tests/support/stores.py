"""Stores of kept models with little in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from strongreplay.models import versions as store_file
from strongreplay.models.manifest import objects_of
from strongreplay.models.store import Store
from support.compare import assert_same

MARK = bytes(range(200, 232))


LEARN = {"act": "learn"}


def parts_of(number: int) -> dict[str, Any]:
    """A net that changes, its old copy, a memory with the mark, and a part without tensors."""
    mark = torch.tensor(list(MARK), dtype=torch.uint8)
    return {
        "net": {"w": torch.full((300,), float(number))},
        "old_net": {"w": torch.full((300,), float(number - 1))},
        "memory": {"images": torch.stack([mark, torch.full_like(mark, number)]), "sources": ["secret", "b"]},
        "labels": ["cat", "dog"][:number],
    }


def make_store(folder: Path) -> Store:
    """Three versions and a candidate learnt from the third."""
    store = Store(folder)
    for number in (1, 2, 3):
        store.commit(parts_of(number), {"chunk": number}, LEARN)
    store.stage(parts_of(9), {"chunk": 9}, {"act": "refuse"})
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "model")


def names(store: Store) -> list[str]:
    return [version.name for version in store.versions()]


def object_files(store: Store) -> list[Path]:
    return sorted((store.folder / "objects").iterdir())


def all_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def assert_whole(store: Store) -> None:
    """No fault, nothing left over, and every version has the content it was written with."""
    assert store.verify() == []
    known = set(store_file.OURS)
    assert {path.name for path in store.folder.iterdir()} <= known - {"pending.json"}
    used = {key for one in store.readable().values() for key in objects_of(one)}
    assert {path.name for path in object_files(store)} == {f"{key}.safetensors" for key in used}
    assert not list(store.folder.rglob(".new-*"))


def assert_contents(store: Store, memory: bool = True) -> None:
    for version in store.versions():
        found = store.read(version.name)[1]
        right = parts_of(version.about["chunk"])
        if not memory:
            del found["memory"], right["memory"]
        assert_same(found, right)


def forget_mark(tree: Any) -> Any:
    mark = torch.tensor(list(MARK), dtype=torch.uint8)
    kept = [row for row, image in enumerate(tree["images"]) if not torch.equal(image, mark)]
    if len(kept) == len(tree["images"]):
        return None
    return {"images": tree["images"][kept], "sources": [tree["sources"][row] for row in kept]}


def files_with(folder: Path, *patterns: bytes) -> list[Path]:
    return [path for path in all_files(folder) for one in patterns if one in path.read_bytes()]


def shorten_history(store: Store) -> None:
    store.log({"act": "export"})
    with store.writing():
        store.acts.shorten(2, 1)


ACTS: dict[str, Callable[[Store], object]] = {
    "commit": lambda store: store.commit(parts_of(4), {"chunk": 4}, LEARN),
    "stage": lambda store: store.stage(parts_of(5), {"chunk": 5}, {"act": "refuse"}),
    "accept": lambda store: store.accept({"act": "accept"}),
    "drop": lambda store: store.drop_candidate(),
    "rollback": lambda store: store.rollback("v2", {"act": "rollback"}),
    "prune": lambda store: store.prune(1),
    "shorten": shorten_history,
    "rewrite": lambda store: store.rewrite(["memory"], forget_mark, {"act": "forget"}),
}


RESULT = {"commit": "v4", "accept": "v4", "rollback": "v2"}  # what is in use after the act
