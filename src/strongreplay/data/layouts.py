"""Folders that are split into train, val and test, with class folders, lists of images or tables in each."""

import os
from pathlib import Path
from typing import NamedTuple

from strongreplay.data.archives import telling
from strongreplay.data.images import ENDINGS
from strongreplay.data.manifests import find_metadata
from strongreplay.data.tables import TableFiles, find_tables
from strongreplay.errors import DataError

ROLES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
Part = Path | TableFiles


class DataParts(NamedTuple):
    """Training data, guard set, and notes for the user."""

    train: object
    val: object | None = None
    notes: tuple[str, ...] = ()


def split_data(data: object) -> DataParts:
    """The parts of a folder with train/, and val/ or test/ beside it; other data are learnt as they are."""
    parts = find_parts(Path(data)) if isinstance(data, str | os.PathLike) else {}
    if not parts:
        return DataParts(data)
    notes = [f"{data}: the part train is learnt"]
    if "val" in parts:
        notes.append("val is the guard set and is never learnt")
    if "test" in parts:
        notes.append(f"test is left alone, for: ser evaluate STATE --data {parts['test']}")
    return DataParts(parts["train"], parts.get("val"), ("; ".join(notes),))


def choose_test_data(data: object) -> tuple[object, str | None]:
    """What to evaluate of a folder: its part test, else val, else train, and a note that says so."""
    parts = find_parts(Path(data)) if isinstance(data, str | os.PathLike) else {}
    if not parts:
        return data, None
    role = next(role for role in ("test", "val", "train") if role in parts)
    return parts[role], f"{data} has the parts {', '.join(sorted(parts))}; {role} is evaluated"


def find_parts(folder: Path) -> dict[str, Part]:
    """train, val and test of a folder, or nothing if it is not split."""
    with telling(folder, "give a folder of class folders, or a CSV manifest"):
        if not folder.is_dir():
            return {}
        tables = find_tables(folder)
        if tables:
            return _by_role(dict(tables), folder)
        inner = {
            path.name: path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
        }
        found = _by_role(dict(inner), folder)
        return found if found and all(_is_part(path) for path in inner.values()) else {}


def _by_role(named: dict[str, Part], folder: Path) -> dict[str, Part]:
    roles: dict[str, Part] = {}
    for name, part in named.items():
        role = ROLES.get(name.lower())
        if role is None:
            return {}
        if role in roles:
            raise DataError(f"{folder} has two parts for {role}, {name} is one of them; take one of them out")
        roles[role] = part
    return roles if "train" in roles else {}


def _is_part(folder: Path) -> bool:
    """Whether a folder called train is a part; with images straight inside it is a class of that name."""
    if find_metadata(folder):
        return True
    entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return any(path.is_dir() for path in entries) and not any(
        path.suffix.lower() in ENDINGS and path.is_file() for path in entries
    )
