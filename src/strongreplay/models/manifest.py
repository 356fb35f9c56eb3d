"""Manifests of a kept model: what a version says of itself, as one line of JSON with a sum of its own."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from strongreplay.errors import DataError, RunError
from strongreplay.storage.files import MAX_JSON, manifest_sum, parse_json, read_bytes
from strongreplay.storage.objects import is_entry
from strongreplay.storage.state import MALFORMED

FORMAT = 1
CANDIDATE = "candidate"
NAME = re.compile(r"v[1-9][0-9]{0,8}")
REMEDY = "put the file back from a copy, or go to another version with rollback and remove this one"

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """What a manifest says of its version; a candidate has the number 0."""

    name: str
    number: int
    parent: str | None
    written: str
    about: dict[str, Any]
    path: Path
    parts: tuple[str, ...]
    size: int  # bytes of its objects
    own_size: int | None = None  # bytes that nothing else uses; only `Store.versions` knows


def version_of(manifest: Manifest, path: Path) -> Version:
    values = {key: manifest[key] for key in ("name", "number", "parent", "written", "about")}
    return Version(
        **values, path=path, parts=tuple(manifest["parts"]), size=sum(objects_of(manifest).values())
    )


def objects_of(manifest: Manifest) -> dict[str, int]:
    """The objects a version needs and their bytes."""
    entries = manifest["parts"].values()
    return {entry["object"]: entry["bytes"] for entry in entries if entry["object"]}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def number_of(name: str) -> int:
    return int(name.removeprefix("v"))


def is_name(value: object) -> bool:
    """Whether it is the name of a version, such as v12."""
    return isinstance(value, str) and bool(NAME.fullmatch(value))


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two are written alike; NaN is not equal to itself, its text is."""
    return manifest_sum(first) == manifest_sum(second)


def signed(content: dict[str, Any]) -> bytes:
    """One line of JSON with a sum of its own."""
    content = json.loads(json.dumps(content))  # keys as they will be read, or the sum would not fit
    data = json.dumps(content | {"sum": manifest_sum(content)}, separators=(",", ":")).encode()
    if len(data) > MAX_JSON:
        raise RunError(
            f"{len(data)} bytes of plain values, at most {MAX_JSON}; keep the large ones in tensors"
        )
    return data


def checked(data: bytes, where: object) -> dict[str, Any]:
    """What was signed, without its sum; anything else is a DataError that names the place."""
    try:
        content = parse_json(data)
        number, whole = content.get("format", FORMAT), content["sum"] == manifest_sum(content)
        newer = number > FORMAT
    except MALFORMED as error:
        raise DataError(f"{where}: damaged ({type(error).__name__}: {error}); {REMEDY}") from None
    if newer:
        raise DataError(f"{where}: format {number} is newer than {FORMAT}; update strongreplay")
    if not whole:
        raise DataError(f"{where}: damaged (its sum does not fit); {REMEDY}")
    return {key: value for key, value in content.items() if key != "sum"}


def read_signed(file: Path) -> dict[str, Any]:
    return checked(read_bytes(file, MAX_JSON, REMEDY), file)


def read_manifest(file: Path, name: str) -> Manifest:
    """The manifest of that version; anything else is a DataError that names the file."""
    manifest = read_signed(file)
    number = 0 if name == CANDIDATE else number_of(name)
    try:
        right = (manifest["name"], manifest["number"], manifest["format"]) == (name, number, FORMAT)
        right &= manifest["parent"] is None or is_name(manifest["parent"])
        right &= isinstance(manifest["written"], str) and isinstance(manifest["about"], dict)
        right &= all(is_entry(entry) for entry in manifest["parts"].values())
    except MALFORMED as error:
        raise DataError(f"{file}: not a manifest ({type(error).__name__}: {error}); {REMEDY}") from None
    if not right:
        raise DataError(f"{file}: not the manifest of {name}; {REMEDY}")
    return manifest
