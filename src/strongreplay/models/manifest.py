"""Manifests of a kept model: the description of a version, as one line of JSON with a checksum."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

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
    """A version as its manifest describes it; a candidate has the number 0."""

    name: str
    number: int
    parent: str | None
    written: str
    about: dict[str, Any]
    path: Path
    parts: tuple[str, ...]
    size: int  # bytes of its objects
    own_size: int | None = None  # bytes that no other version uses; only set by `Store.versions`


def version_of(manifest: Manifest, path: Path) -> Version:
    values = {key: manifest[key] for key in ("name", "number", "parent", "written", "about")}
    return Version(
        **values, path=path, parts=tuple(manifest["parts"]), size=sum(objects_of(manifest).values())
    )


def objects_of(manifest: Manifest) -> dict[str, int]:
    """The objects of a version and their sizes in bytes."""
    entries = manifest["parts"].values()
    return {entry["object"]: entry["bytes"] for entry in entries if entry["object"]}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def number_of(name: str) -> int:
    return int(name.removeprefix("v"))


def is_name(value: object) -> TypeGuard[str]:
    """Whether the value is the name of a version, such as v12."""
    return isinstance(value, str) and bool(NAME.fullmatch(value))


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two dicts have the same JSON text, so that NaN equals NaN."""
    return manifest_sum(first) == manifest_sum(second)


def signed(content: dict[str, Any]) -> bytes:
    """One line of JSON with a checksum."""
    content = json.loads(json.dumps(content))  # convert keys to text, as a reader of the checksum sees them
    data = json.dumps(content | {"sum": manifest_sum(content)}, separators=(",", ":")).encode()
    if len(data) > MAX_JSON:
        raise RunError(
            f"{len(data)} bytes of plain values, at most {MAX_JSON}; keep the large ones in tensors"
        )
    return data


def checked(data: bytes, where: object) -> dict[str, Any]:
    """The inverse of `signed`; anything else is a DataError that names `where`."""
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
    """Read the manifest of a version; anything else is a DataError that names the file."""
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
