"""Reads the folder of a kept model: its versions, the one in use, a candidate, its history.

Tensors are in `objects/`, named by their content. A version is a manifest in `versions/`, `current` names the
one in use, `candidate.json` is an update that was refused, `history.jsonl` has a line for every act.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from strongreplay.errors import ConfigError, DataError
from strongreplay.models.check import check_manifest, check_parts
from strongreplay.models.history import History, Tell, ignore
from strongreplay.models.manifest import (
    CANDIDATE,
    NAME,
    REMEDY,
    Manifest,
    Version,
    is_name,
    number_of,
    objects_of,
    read_manifest,
    same,
    version_of,
)
from strongreplay.storage import files, lock
from strongreplay.storage.objects import Objects
from strongreplay.storage.state import Tree

WORK = "work"  # checkpoints of an unfinished update; not read here
FEATURES = "features"  # a cache; see `models/features.py`
FOLDERS = {"objects", "versions", WORK, FEATURES}
OURS = FOLDERS | {"candidate.json", "current", "history.jsonl", "pending.json", lock.LOCK, lock.LEASE}
INSIDE = re.compile(
    r"[0-9a-f]{64}\.safetensors|v[0-9]{4,9}\.json|state-[0-9]+|f[0-9]{6,9}\.safetensors|\.new-.*"
)


class VersionFolder:
    """Read access to the folder of a kept model; the folder may not exist yet."""

    check_manifest = staticmethod(check_manifest)  # a subclass can store other content

    def __init__(self, folder: Path) -> None:
        # The folder itself can be a symbolic link; inside it, links are refused.
        self.folder = Path(os.path.realpath(folder)) if os.path.islink(folder) else folder
        self.objects, self.manifests = Objects(self.folder / "objects", REMEDY), self.folder / "versions"
        self.candidate, self.in_use = self.folder / "candidate.json", self.folder / "current"
        self.acts = History(self.folder)

    # Reading

    @property
    def exists(self) -> bool:
        """Whether a version is in use; true for a damaged version too."""
        return os.path.lexists(self.in_use)

    @property
    def current(self) -> str:
        """The name of the version in use."""
        if name := self.peek():
            return name
        if names := list(self.files()):
            raise DataError(f"{self.in_use}: missing; choose a version with rollback: {', '.join(names)}")
        raise DataError(f"{self.folder}: no model is kept there; make one with `ser learn`")

    def versions(self, tell: Tell = ignore) -> list[Version]:
        """All valid versions, oldest first; `tell` is called with a message about each damaged one."""
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
        self, name: str | None = None, parts: Iterable[str] | None = None, optional: Iterable[str] = ()
    ) -> tuple[Version, dict[str, Tree]]:
        """A version (default: the one in use; or "candidate") and parts of it; optional ones may miss."""
        wanted, more = None if parts is None else list(parts), list(optional)
        while True:
            manifest = self.manifest(name)
            try:
                version = self.version_of(manifest)
                has = [key for key in more if key in version.parts]
                keys = version.parts if wanted is None else [*wanted, *has]
                if missing := [key for key in keys if key not in version.parts]:
                    raise DataError(f"{version.path}: no part {missing}; there are {list(version.parts)}")
                parts = {key: self.objects.load(manifest["parts"][key], version.path) for key in keys}
                check_parts(parts, version.path)
                return version, parts
            except DataError:  # retry if a writer replaced the version meanwhile
                if same(self.manifest(name), manifest):
                    raise

    def history(self, tell: Tell = ignore) -> list[dict[str, Any]]:
        """The acts, oldest first, each with the version in use after it; `tell` gets damaged lines."""
        found, act = self.acts.read(tell), self.acts.under_way()
        if act and self.is_in_use(act["line"]["version"]) and not (found and same(found[-1], act["line"])):
            found.append(act["line"])  # the writer was killed before it wrote this line
        return found

    def verify(self) -> list[str]:
        """One message for each fault of the folder; nothing is repaired."""
        faults: list[str] = []
        manifests, seen = self.readable(faults.append), set[str]()
        for name, manifest in manifests.items():
            for entry in manifest["parts"].values():
                if (key := json.dumps(entry)) not in seen:
                    seen.add(key)
                    with collecting(faults):
                        self.objects.load(entry, self.path_of(name))
        with collecting(faults):
            acts, name = self.history(faults.append), self.current
            if name not in self.files():
                faults.append(f"{self.in_use}: names {name}, which is not there; choose one with rollback")
            elif not acts or acts[-1].get("version") != name:
                faults.append(
                    f"{self.acts.lines}: its last line is not about {name}, which {self.in_use} names"
                )
        with collecting(faults):
            self.acts.verify()
        return faults

    # Names and paths

    def files(self) -> dict[str, Path]:
        """Version name -> manifest file, oldest first, without a version that was never in use."""
        names = (path.stem.lstrip("v0") for path in contents(self.manifests) if path.suffix == ".json")
        numbers = sorted(int(name) for name in names if NAME.fullmatch(f"v{name}"))
        found = {f"v{number}": self.path_of(f"v{number}") for number in numbers}
        hidden = self.unannounced()
        return {name: path for name, path in found.items() if name != hidden and os.path.lexists(path)}

    def path_of(self, name: str) -> Path:
        return self.candidate if name == CANDIDATE else self.manifests / f"v{number_of(name):04d}.json"

    def names(self) -> list[str]:
        """The names of the versions, oldest first, and of the candidate."""
        return [*self.files(), *([CANDIDATE] if os.path.lexists(self.candidate) else [])]

    def manifest(self, name: str | None) -> Manifest:
        """The checked manifest of a version; default: the one in use."""
        known = self.names()
        if name is None and (name := self.current) not in known:
            raise DataError(f"{self.in_use}: names {name}, which is not there; choose one with rollback")
        if name not in known:
            there = f"there are: {', '.join(known) or 'none'}"
            if is_name(name) and number_of(name) < self.next_number():
                raise ConfigError(
                    f"{self.folder}: {name} was removed, because only the newest versions are kept; {there}; "
                    "ser learn --keep N keeps more of them from then on"
                )
            raise ConfigError(f"{self.folder}: no version '{name}'; {there}")
        return self.read_manifest(name)

    def read_manifest(self, name: str) -> Manifest:
        manifest = read_manifest(self.path_of(name), name)
        self.check_manifest(manifest, self.path_of(name))
        return manifest

    def readable(self, tell: Tell = ignore) -> dict[str, Manifest]:
        """Every valid manifest, the candidate last; `tell` is called for each invalid one."""
        found = {}
        for name in self.names():
            try:
                found[name] = self.read_manifest(name)
            except DataError as error:
                tell(str(error))
        return found

    def version_of(self, manifest: Manifest) -> Version:
        return version_of(manifest, self.path_of(manifest["name"]))

    def peek(self) -> str | None:
        """The name in `current`; None if there is no such file."""
        if not self.exists:
            return None
        text = files.read_bytes(self.in_use, 16, "choose a version with rollback").decode(errors="replace")
        if not (text.endswith("\n") and is_name(text[:-1])):
            raise DataError(f"{self.in_use}: {text!r} is no version's name; choose a version with rollback")
        return text[:-1]

    def is_in_use(self, name: str) -> bool:
        """Whether a version is in use; true for every version if `current` cannot be read."""
        try:
            return self.peek() == name
        except DataError:
            return True

    def unannounced(self) -> str | None:
        """A version whose writer was killed before it came into use."""
        act = self.acts.under_way()
        name = act["line"]["version"] if act and act["new"] else None
        if name is None or self.is_in_use(name) or name in [line.get("version") for line in self.acts.read()]:
            return None
        return str(name)

    def parent(self) -> str | None:
        """The parent of the next version; None only if there is no version."""
        return self.current if self.exists or self.files() else None

    def next_number(self) -> int:
        """A number above all that were ever used, including damaged and removed versions."""
        lines = self.history()
        used = [line.get(key) for line in lines for key in ("version", "highest")]
        names: list[Any] = [*self.files(), *used]
        number = 1 + max((number_of(name) for name in names if is_name(name)), default=0)
        if not is_name(f"v{number}"):
            raise DataError(f"{self.folder}: no number follows v{number - 1}; start a model in a new folder")
        return number

    def refuse_strangers(self) -> None:
        """Refuse a folder with files that are not a model's, such as a folder of photos."""
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


def contents(folder: Path) -> list[Path]:
    """The entries of a folder; none if it does not exist."""
    try:
        return sorted(folder.iterdir()) if os.path.isdir(folder) else []
    except OSError as error:
        raise DataError(
            f"{folder}: not readable ({error.strerror or error}); make it readable, or choose another folder"
        ) from None


@contextmanager
def collecting(faults: list[str]) -> Iterator[None]:
    """Add a DataError to the faults instead of raising it."""
    try:
        yield
    except DataError as error:
        faults.append(str(error))
