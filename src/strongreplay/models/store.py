"""The versions of a model that is kept up to date: one folder, written so that it is whole at every instant.

Tensors lie in `objects/`, named by their content, so what two versions share is there once. A version is a
manifest in `versions/`, `current` names the one in use, `candidate.json` is an update that was refused,
`history.jsonl` tells what was done. Everything is written under another name, synced and renamed, and nothing
counts before `current` is replaced: a process that is killed leaves the last version in use and whole.
`pending.json` is the act under way, by which the next one finishes it or takes it back. A writer holds
`locked()` around all it does; readers need no lock. Reading checks sizes and sums and executes nothing.
"""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors.torch import load as parse_tensors
from safetensors.torch import save as pack_tensors

from strongreplay import __version__
from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.storage import files, lock
from strongreplay.storage.files import (
    MAX_JSON,
    manifest_sum,
    parse_json,
    read_checked,
    sha256,
    sync_folder,
)
from strongreplay.storage.files import append as append_bytes
from strongreplay.storage.files import read_bytes as read_plain
from strongreplay.storage.state import MALFORMED, Tree, pack, unpack

FORMAT = 1
CANDIDATE = "candidate"
WORK = "work"  # where an update that is not done yet keeps its checkpoints; they are not looked at here
FOLDERS = {"objects", "versions", WORK}
OURS = FOLDERS | {"candidate.json", "current", "history.jsonl", "pending.json", lock.LOCK, lock.LEASE}
INSIDE = re.compile(r"[0-9a-f]{64}\.safetensors|v[0-9]{4,9}\.json|state-[0-9]+|\.new-.*")
NAME = re.compile(r"v[1-9][0-9]{0,8}")
OBJECT = re.compile(r"[0-9a-f]{64}")
REMEDY = "put the file back from a copy, or go to another version with rollback and remove this one"

Manifest = dict[str, Any]


def silent(text: str) -> None:
    """Nobody listens."""


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
    own_size: int | None = None  # bytes that nothing else uses; only `versions` looks at all manifests


class Store:
    """The versions in a folder, which need not be there before the first `commit`."""

    def __init__(self, folder: Path) -> None:
        # The user may link the folder itself; inside it, links are refused.
        self.folder = Path(os.path.realpath(folder)) if os.path.islink(folder) else folder
        self.objects, self.manifests = self.folder / "objects", self.folder / "versions"
        self.candidate, self.pending = self.folder / "candidate.json", self.folder / "pending.json"
        self.in_use, self.lines = self.folder / "current", self.folder / "history.jsonl"

    # Reading

    @property
    def exists(self) -> bool:
        """Whether a version is in use, be it damaged."""
        return os.path.lexists(self.in_use)

    @property
    def current(self) -> str:
        """The name of the version in use."""
        if name := self.peek():
            return name
        if names := list(self.files()):
            raise DataError(f"{self.in_use}: missing; choose a version with rollback: {', '.join(names)}")
        raise DataError(f"{self.folder}: no model is kept there; make one with `ser learn`")

    def versions(self, tell: Callable[[str], None] = silent) -> list[Version]:
        """The oldest first; `tell` hears of each that is damaged and left out."""
        found = self.readable(tell)
        users = Counter(name for manifest in found.values() for name in objects_of(manifest))
        return [
            replace(
                self.version_of(manifest),
                own_size=sum(size for key, size in objects_of(manifest).items() if users[key] == 1),
            )
            for name, manifest in found.items()
            if name != CANDIDATE
        ]

    def read(
        self, name: str | None = None, parts: Iterable[str] | None = None
    ) -> tuple[Version, dict[str, Tree]]:
        """A version, or the one in use, or "candidate", and of its parts those asked for."""
        wanted = None if parts is None else list(parts)
        while True:
            manifest = self.manifest(name)
            try:
                version = self.version_of(manifest)
                keys = version.parts if wanted is None else wanted
                if missing := [key for key in keys if key not in version.parts]:
                    raise DataError(f"{version.path}: no part {missing}; there are {list(version.parts)}")
                return version, {key: self.load(manifest["parts"][key], version.path) for key in keys}
            except DataError:  # unless a writer replaced the version while we read it
                if same(self.manifest(name), manifest):
                    raise

    def history(self, tell: Callable[[str], None] = silent) -> list[dict[str, Any]]:
        """The acts, oldest first, each with the version in use after it; `tell` hears of damaged lines."""
        found, act = self.told(tell), self.under_way()
        if act and self.is_in_use(act["line"]["version"]) and not (found and same(found[-1], act["line"])):
            found.append(act["line"])  # its writer was killed before it could tell
        return found

    def verify(self) -> list[str]:
        """Every fault of the folder in one sentence each; nothing is repaired."""
        faults: list[str] = []
        manifests, seen = self.readable(faults.append), set[str]()
        for name, manifest in manifests.items():
            for entry in manifest["parts"].values():
                if (key := json.dumps(entry)) not in seen:
                    seen.add(key)
                    with noted(faults):
                        self.load(entry, self.path_of(name))
        with noted(faults):
            acts, name = self.history(faults.append), self.current
            if name not in self.files():
                faults.append(f"{self.in_use}: names {name}, which is not there; choose one with rollback")
            elif not acts or acts[-1].get("version") != name:
                faults.append(f"{self.lines}: its last line does not name {name}, which {self.in_use} names")
        with noted(faults):
            if os.path.lexists(self.pending):
                checked(read_plain(self.pending, MAX_JSON, REMEDY), self.pending)
        return faults

    # Writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers off; a folder with other things in it is refused before anything is written."""
        self.refuse_strangers()
        with lock.locked(self.folder):
            yield

    def commit(self, parts: Mapping[str, Tree], about: dict[str, Any], act: dict[str, Any]) -> Version:
        """Write the next version whole, then put it in use."""
        with self.writing():
            return self.announce(self.draft(parts, about), act)

    def stage(self, parts: Mapping[str, Tree], about: dict[str, Any], act: dict[str, Any]) -> None:
        """Keep a refused update aside, in place of the one before it."""
        with self.writing():
            files.write_bytes(self.candidate, signed(self.draft(parts, about)))
            self.append(act)
            self.sweep()

    def accept(self, act: dict[str, Any]) -> Version:
        """The candidate becomes the next version, if what it was learnt from is still in use."""
        with self.writing():
            manifest = self.manifest(CANDIDATE)
            if manifest["parent"] != self.parent():
                raise RunError(
                    f"{self.candidate}: learnt from {manifest['parent']}, but {self.peek()} is in use; "
                    f"roll back to {manifest['parent']} first, or learn again"
                )
            for entry in manifest["parts"].values():
                self.load(entry, self.candidate)
            return self.announce(manifest, act, takes_candidate=True)

    def drop_candidate(self) -> None:
        """Forget the refused update, if there is one."""
        with self.writing():
            if os.path.lexists(self.candidate):
                self.candidate.unlink()
                sync_folder(self.folder)  # first the manifest is gone for good, then what it names
                self.sweep()

    def rollback(self, name: str, act: dict[str, Any]) -> Version:
        """Put another version in use; nothing is copied."""
        with self.writing(sweep=False):
            if name == CANDIDATE:
                raise ConfigError("a candidate is put in use by accepting it, not by rollback")
            manifest = self.manifest(name)
            for key, size in objects_of(manifest).items():
                file = self.object_file(key)
                if not file.is_file() or file.stat().st_size != size:
                    raise DataError(f"{file}: {name} needs it, but it is missing or cut off; {REMEDY}")
            self.switch(name, act)
            return self.version_of(manifest)

    def prune(self, keep: int) -> list[str]:
        """Forget all but the newest `keep`, the one in use and its parent; the names of those forgotten."""
        if keep < 1:
            raise ConfigError(f"keep: {keep} versions; keep at least 1")
        with self.writing():
            found = self.readable()
            kept = [*[name for name in found if name != CANDIDATE][-keep:], self.current]
            if parent := found.get(self.current, {}).get("parent"):
                kept.append(parent)
            newest = max(number_of(name) for name in kept)
            # A damaged one goes too, unless it is newer than all that are whole
            gone = [name for name in self.files() if name not in kept and number_of(name) < newest]
            for name in gone:
                self.path_of(name).unlink()
            sync_folder(self.manifests)
            self.sweep()
            if gone:
                self.append({"act": "prune", "forgotten": gone})
            return gone

    def rewrite(
        self,
        part_names: Iterable[str],
        change: Callable[[Tree], Tree | None],
        act: dict[str, Any],
        retell: Callable[[dict[str, Any]], dict[str, Any]] = lambda about: about,
    ) -> list[str]:
        """Change those parts in every version and the candidate and remove what only the old ones used.

        `change` gives none for a part that may stay, `retell` what a version tells of itself from now on;
        what a killed call left undone, the next one does.
        """
        wanted, known, changed = set(part_names), dict[str, Any](), list[str]()
        with self.writing():
            for name, manifest in self.readable(refuse).items():
                parts = manifest["parts"]
                for part in wanted & set(parts):
                    key = json.dumps(parts[part])
                    if key not in known:  # versions share parts: each is changed once
                        tree = change(self.load(parts[part], self.path_of(name)))
                        known[key] = parts[part] if tree is None else self.keep(tree)
                    parts = parts | {part: known[key]}
                rewritten = manifest | {"parts": parts, "about": retell(manifest["about"])}
                if not same(rewritten, manifest):
                    sync_folder(self.objects)
                    files.write_bytes(self.path_of(name), signed(rewritten))
                    changed.append(name)
            self.sweep()
            self.append(act | {"changed": changed})
        return changed

    def log(self, act: dict[str, Any]) -> None:
        """Add a line to the history."""
        with self.writing(sweep=False):
            self.append(act)

    # What is where

    def files(self) -> dict[str, Path]:
        """The manifests by the names of their versions, oldest first, without one that was never in use."""
        names = (path.stem.lstrip("v0") for path in contents(self.manifests) if path.suffix == ".json")
        numbers = sorted(int(name) for name in names if NAME.fullmatch(f"v{name}"))
        found = {f"v{number}": self.path_of(f"v{number}") for number in numbers}
        hidden = self.unannounced()
        return {name: path for name, path in found.items() if name != hidden and os.path.lexists(path)}

    def path_of(self, name: str) -> Path:
        return self.candidate if name == CANDIDATE else self.manifests / f"v{number_of(name):04d}.json"

    def names(self) -> list[str]:
        """Those of the versions, oldest first, and of the candidate."""
        return [*self.files(), *([CANDIDATE] if os.path.lexists(self.candidate) else [])]

    def manifest(self, name: str | None) -> Manifest:
        """The checked manifest of a version or of the one in use."""
        known = self.names()
        if name is None and (name := self.current) not in known:
            raise DataError(f"{self.in_use}: names {name}, which is not there; choose one with rollback")
        if name not in known:
            raise ConfigError(f"{self.folder}: no version '{name}'; there are: {', '.join(known) or 'none'}")
        return read_manifest(self.path_of(name), name)

    def readable(self, tell: Callable[[str], None] = silent) -> dict[str, Manifest]:
        """Every manifest that is whole, the candidate last; `tell` hears of the others."""
        found = {}
        for name in self.names():
            try:
                found[name] = read_manifest(self.path_of(name), name)
            except DataError as error:
                tell(str(error))
        return found

    def version_of(self, manifest: Manifest) -> Version:
        told = {key: manifest[key] for key in ("name", "number", "parent", "written", "about")}
        size = sum(objects_of(manifest).values())
        return Version(**told, path=self.path_of(told["name"]), parts=tuple(manifest["parts"]), size=size)

    def object_file(self, name: str) -> Path:
        return self.objects / f"{name}.safetensors"

    def load(self, entry: dict[str, Any], where: Path) -> Tree:
        """A part from its entry in the manifest at `where`."""
        data = None
        if name := entry["object"]:
            data = read_checked(self.object_file(name), {"bytes": entry["bytes"], "sha256": name}, REMEDY)
        try:
            return unpack(entry["tree"], parse_tensors(data) if data else {})
        except MALFORMED as error:
            raise DataError(f"{where}: not a part of a model of this package ({error}); {REMEDY}") from None

    def peek(self) -> str | None:
        """The name in `current`; none if there is no such file."""
        if not self.exists:
            return None
        text = read_plain(self.in_use, 16, "choose a version with rollback").decode(errors="replace")
        if not (text.endswith("\n") and NAME.fullmatch(text[:-1])):
            raise DataError(f"{self.in_use}: {text!r} is no version's name; choose a version with rollback")
        return text[:-1]

    def is_in_use(self, name: str) -> bool:
        """Whether a version is in use or may be, if `current` cannot be read."""
        try:
            return self.peek() == name
        except DataError:
            return True

    def under_way(self) -> dict[str, Any] | None:
        """The act that a writer is at, or was when it was killed."""
        with contextlib.suppress(DataError):
            act = checked(read_plain(self.pending, MAX_JSON), self.pending)
            if isinstance(act.get("line"), dict) and NAME.fullmatch(str(act["line"].get("version"))):
                return {"new": False, "takes_candidate": False} | act
        return None

    def unannounced(self) -> str | None:
        """A version whose writer was killed before it came into use."""
        act = self.under_way()
        name = act["line"]["version"] if act and act["new"] else None
        if name is None or self.is_in_use(name) or name in [line.get("version") for line in self.told()]:
            return None
        return str(name)

    def parent(self) -> str | None:
        """What the next version is learnt from; none only where there is no version at all."""
        return self.current if self.exists or self.files() else None

    def next_number(self) -> int:
        """Above every number that was ever in use, damaged and forgotten ones too."""
        names = [*self.files(), *(str(line.get("version")) for line in self.history())]
        number = 1 + max((number_of(name) for name in names if NAME.fullmatch(name)), default=0)
        if not NAME.fullmatch(f"v{number}"):
            raise DataError(f"{self.folder}: no number follows v{number - 1}; start a model in a new folder")
        return number

    def told(self, tell: Callable[[str], None] = silent) -> list[dict[str, Any]]:
        """The whole lines of the history file; `tell` hears of the others."""
        *lines, torn = self.told_bytes().split(b"\n")
        found = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(checked(line, f"{self.lines}, line {number}"))
            except DataError as error:
                tell(str(error))
        if torn:  # by a kill, or by a full disk
            tell(f"{self.lines}: the last line is cut off; the next update takes it away")
        return found

    def told_bytes(self) -> bytes:
        return read_plain(self.lines, MAX_JSON, REMEDY) if os.path.lexists(self.lines) else b""

    # How it is written

    def refuse_strangers(self) -> None:
        """A folder with other things in it is somebody's photos, not a place for a model."""
        if not os.path.lexists(self.folder):
            return
        if not os.path.isdir(self.folder):
            raise DataError(
                f"{self.folder}: a file where the folder of a model should be; choose another name"
            )
        found = contents(self.folder)
        wrong = [path for path in found if path.name in OURS and path.is_dir() != (path.name in FOLDERS)]
        wrong += [path for path in found if path.name in OURS and path.is_symlink()]
        strange = [path for path in found if path.name not in OURS and not path.name.startswith(".new-")]
        strange += [path for name in FOLDERS for path in contents(self.folder / name)]
        strange = [path for path in strange if not INSIDE.fullmatch(path.name)]
        if (wrong or strange) and not self.files():
            raise DataError(
                f"{self.folder}: holds other things and no model (such as {(wrong + strange)[0].name}); "
                "choose an empty folder or a new name"
            )
        if wrong:
            raise DataError(f"{wrong[0]}: a link, or a folder and a file confused; put back what was there")

    @contextmanager
    def writing(self, sweep: bool = True) -> Iterator[None]:
        """Around every act: what a killed one left is cleared first, and a full disk is told."""
        try:
            self.refuse_strangers()
            self.settle()
            if sweep:
                self.sweep()
            yield
        except OSError as error:
            with contextlib.suppress(OSError, DataError):
                self.settle()
                self.sweep()
            remedy = "make it writable" if isinstance(error, PermissionError) else "make room"
            raise RunError(
                f"{self.folder}: could not be written ({error.strerror or error}); {remedy} and repeat, "
                "the version in use is still the one before"
            ) from None

    def settle(self) -> None:
        """Finish the act a killed process was at, if its version came into use, or take it back."""
        for folder in (self.folder, self.objects, self.manifests):
            files.clear_leftovers(folder)
        data = self.told_bytes()
        if not data.endswith(b"\n") and data:
            files.truncate(self.lines, data.rfind(b"\n") + 1)
        if (act := self.under_way()) and self.is_in_use(act["line"]["version"]):
            self.finish(act)
        if name := self.unannounced():
            self.path_of(name).unlink(missing_ok=True)
            sync_folder(self.manifests)
        self.pending.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the objects that no manifest names; a damaged manifest might name any, then all stay."""
        faults: list[str] = []
        named = {key for one in self.readable(faults.append).values() for key in objects_of(one)}
        if not faults:
            for path in contents(self.objects):
                if OBJECT.fullmatch(path.stem) and path.stem not in named:
                    path.unlink()
            if os.path.isdir(self.objects):
                sync_folder(self.objects)

    def draft(self, parts: Mapping[str, Tree], about: dict[str, Any]) -> Manifest:
        """The manifest of a candidate whose objects are on disk."""
        for folder in (self.objects, self.manifests):
            files.make_folder(folder)
        manifest = {
            "format": FORMAT,
            "package": __version__,
            "name": CANDIDATE,
            "number": 0,
            "parent": self.parent(),
            "written": now(),
            "about": about,
            "parts": {part: self.keep(tree) for part, tree in parts.items()},
        }
        sync_folder(self.objects)
        return manifest

    def keep(self, tree: Tree) -> dict[str, Any]:
        """A part's entry in a manifest; its tensors are written unless they are there already."""
        plain, tensors = pack(tree)
        if not tensors:
            return {"tree": plain, "object": None, "bytes": 0}
        data = pack_tensors(tensors)
        entry = {"tree": plain, "object": sha256(data), "bytes": len(data)}
        file = self.object_file(entry["object"])
        try:
            read_checked(file, {"bytes": len(data), "sha256": entry["object"]})
        except DataError:  # not there, or damaged
            files.write_bytes(file, data, sync=False)
        return entry

    def announce(self, manifest: Manifest, act: dict[str, Any], takes_candidate: bool = False) -> Version:
        """Give a manifest the next number and put it in use."""
        number = self.next_number()
        manifest = manifest | {"name": f"v{number}", "number": number}
        self.switch(manifest["name"], act, signed(manifest), takes_candidate)
        return self.version_of(manifest)

    def switch(
        self, name: str, act: dict[str, Any], new: bytes | None = None, takes_candidate: bool = False
    ) -> None:
        """Put a version in use; before `current` is replaced nothing has happened, after it all has."""
        line = {"when": now(), **act, "version": name}
        pending = {"line": line, "new": new is not None, "takes_candidate": takes_candidate}
        files.write_bytes(self.pending, signed(pending))
        if new is not None:
            files.write_bytes(self.path_of(name), new)
        files.write_bytes(self.in_use, f"{name}\n".encode(), sync=False)
        # The version is in use: what fails from here on is finished by the next writer, from `pending`
        with contextlib.suppress(OSError, DataError):
            sync_folder(self.folder)
            if found := self.under_way():
                self.finish(found)

    def finish(self, act: dict[str, Any]) -> None:
        """What is left to do once a version is in use."""
        found = self.told()
        if not (found and same(found[-1], act["line"])):
            self.write_line(act["line"])
        if act["takes_candidate"]:
            self.candidate.unlink(missing_ok=True)
        self.pending.unlink()

    def append(self, act: dict[str, Any]) -> None:
        self.write_line({"when": now(), **act, "version": self.peek()})

    def write_line(self, line: dict[str, Any]) -> None:
        append_bytes(self.lines, signed(line) + b"\n")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def number_of(name: str) -> int:
    return int(name.removeprefix("v"))


def contents(folder: Path) -> list[Path]:
    """What is in a folder, if there is one."""
    try:
        return sorted(folder.iterdir()) if os.path.isdir(folder) else []
    except OSError as error:
        raise DataError(
            f"{folder}: not readable ({error.strerror or error}); make it readable, or choose another folder"
        ) from None


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
    """What was signed, without its sum."""
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


def read_manifest(file: Path, name: str) -> Manifest:
    """A manifest that says what it should; anything else is a DataError that names the file."""
    manifest = checked(read_plain(file, MAX_JSON, REMEDY), file)
    number = 0 if name == CANDIDATE else number_of(name)
    try:
        right = (manifest["name"], manifest["number"], manifest["format"]) == (name, number, FORMAT)
        right &= manifest["parent"] is None or bool(NAME.fullmatch(manifest["parent"]))
        right &= isinstance(manifest["written"], str) and isinstance(manifest["about"], dict)
        right &= all(is_entry(entry) for entry in manifest["parts"].values())
    except MALFORMED as error:
        raise DataError(f"{file}: not a manifest ({type(error).__name__}: {error}); {REMEDY}") from None
    if not right:
        raise DataError(f"{file}: not the manifest of {name}; {REMEDY}")
    return manifest


def is_entry(entry: dict[str, Any]) -> bool:
    """Whether a part's entry names an object and nothing that leads elsewhere."""
    name, size = entry["object"], entry["bytes"]
    named = size == 0 if name is None else bool(OBJECT.fullmatch(name))
    return named and type(size) is int and size >= 0 and "tree" in entry


def objects_of(manifest: Manifest) -> dict[str, int]:
    """The objects a version needs and their bytes."""
    entries = manifest["parts"].values()
    return {entry["object"]: entry["bytes"] for entry in entries if entry["object"]}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two are written alike; NaN is not equal to itself, its text is."""
    return manifest_sum(first) == manifest_sum(second)


@contextmanager
def noted(faults: list[str]) -> Iterator[None]:
    """A fault is written down and not raised."""
    try:
        yield
    except DataError as error:
        faults.append(str(error))


def refuse(text: str) -> None:
    raise DataError(f"{text}. Nothing was changed in any version")
