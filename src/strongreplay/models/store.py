"""Store: the acts that change the versions of a kept model; each is atomic.

An act takes effect when `current` is replaced. If it is killed before that, the last version stays in use and
complete, and the next act finishes or undoes it. A writer must hold `locked()` during an act.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from strongreplay import __version__
from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.models.history import Line
from strongreplay.models.manifest import (
    CANDIDATE,
    FORMAT,
    Manifest,
    Version,
    now,
    number_of,
    objects_of,
    same,
    signed,
)
from strongreplay.models.versions import WORK, VersionFolder
from strongreplay.storage import files, lock
from strongreplay.storage.objects import Entry
from strongreplay.storage.state import Tree

__all__ = ["CANDIDATE", "WORK", "Store", "Version"]

KEEP = 10  # versions, unless the user has said otherwise


class Store(VersionFolder):
    """The versions in a folder; the first `commit` creates the folder."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other writers; a folder with foreign files is refused first."""
        self.refuse_strangers()
        with lock.locked(self.folder):
            yield

    def commit(self, parts: Mapping[str, Tree], about: dict[str, Any], act: dict[str, Any]) -> Version:
        """Write the next version completely, then put it in use."""
        with self.writing():
            return self.announce(self.draft(parts, about), act)

    def stage(self, parts: Mapping[str, Tree], about: dict[str, Any], act: dict[str, Any]) -> None:
        """Store a refused update as the candidate; it replaces the last candidate."""
        with self.writing():
            files.write_bytes(self.candidate, signed(self.draft(parts, about)))
            self.acts.append(act, self.peek())
            self.sweep()

    def accept(self, act: dict[str, Any]) -> Version:
        """Make the candidate the next version, if its parent is still in use."""
        with self.writing():
            manifest = self.manifest(CANDIDATE)
            if manifest["parent"] != self.parent():
                raise RunError(
                    f"{self.candidate}: learnt from {manifest['parent']}, but {self.peek()} is in use; "
                    f"roll back to {manifest['parent']} first, or learn again"
                )
            for entry in manifest["parts"].values():
                self.objects.load(entry, self.candidate)
            return self.announce(manifest, act, takes_candidate=True)

    def drop_candidate(self) -> None:
        """Remove the candidate, if there is one."""
        with self.writing():
            if os.path.lexists(self.candidate):
                files.remove(self.candidate)
                files.sync_folder(self.folder)  # the manifest must be gone before its objects are
                self.sweep()

    def rollback(self, name: str, act: dict[str, Any]) -> Version:
        """Put another version in use; nothing is copied."""
        with self.writing(sweep=False):
            if name == CANDIDATE:
                raise ConfigError("a candidate is put in use by accepting it, not by rollback")
            manifest = self.manifest(name)
            self.objects.expect(objects_of(manifest), name)
            self.switch(name, act)
            return self.version_of(manifest)

    def policy(self, keep: int | None = None) -> dict[str, int]:
        """For the description of the next version: how many to keep, if the user has ever said it."""
        check_keep(keep)
        held = keep if keep is not None else self.keep_in_use()
        return {} if held is None else {"keep": held}

    def keep_in_use(self) -> int | None:
        """How many versions to keep, as the description of the version in use says."""
        found = self.readable().get(self.current, {}) if self.exists else {}
        held = found.get("about", {}).get("keep")
        return held if type(held) is int and held >= 1 else None

    def prune(self, keep: int | None = None) -> list[str]:
        """Remove old versions; returns their names.

        The newest `keep` stay, and always the one in use, its parent, and the parent of the candidate. If
        `keep` is None, it is what the user said last, or KEEP.
        """
        check_keep(keep)
        with self.writing():
            number = keep or self.keep_in_use() or KEEP
            found = self.readable()
            kept = [*[name for name in found if name != CANDIDATE][-number:], self.current]
            for name in (self.current, CANDIDATE):
                if parent := found.get(name, {}).get("parent"):
                    kept.append(parent)
            newest = max(number_of(name) for name in kept)
            # Damaged versions are removed too, unless they are newer than all complete ones.
            gone = [name for name in self.files() if name not in kept and number_of(name) < newest]
            for name in gone:
                files.remove(self.path_of(name))
            files.sync_folder(self.manifests)
            self.sweep()
            if gone:
                self.acts.append({"act": "prune", "forgotten": gone}, self.peek())
                self.acts.shorten()
            return gone

    def rewrite(
        self,
        part_names: Iterable[str],
        change: Callable[[Tree], Tree | None],
        act: dict[str, Any],
        redescribe: Callable[[dict[str, Any]], dict[str, Any]] = lambda about: about,
    ) -> list[str]:
        """Change these parts in every version and the candidate, and remove objects that are no longer used.

        `change` returns the new part, or None to keep it; `redescribe` returns the new description of a
        version. If a call is killed, the next one finishes it.
        """
        wanted, known, changed = set(part_names), dict[str, Entry](), list[str]()
        with self.writing():
            for name, manifest in self.readable(refuse).items():
                parts = manifest["parts"]
                for part in wanted & set(parts):
                    key = json.dumps(parts[part])
                    if key not in known:  # versions share parts; each part is changed once
                        tree = change(self.objects.load(parts[part], self.path_of(name)))
                        known[key] = parts[part] if tree is None else self.objects.keep(tree)
                    parts = parts | {part: known[key]}
                rewritten = manifest | {"parts": parts, "about": redescribe(manifest["about"])}
                if not same(rewritten, manifest):
                    files.sync_folder(self.objects.folder)
                    files.write_bytes(self.path_of(name), signed(rewritten))
                    changed.append(name)
            self.sweep()
            self.acts.append(act | {"changed": changed}, self.peek())
        return changed

    def log(self, act: dict[str, Any]) -> None:
        """Add a line to the history."""
        with self.writing(sweep=False):
            self.acts.append(act, self.peek())

    # How it is written

    @contextmanager
    def writing(self, sweep: bool = True) -> Iterator[None]:
        """Around every act: finish or undo a killed act first, and turn an OSError into a RunError."""
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
        """Finish the act of a killed process if its version came into use; otherwise undo it."""
        for folder in (self.folder, self.objects.folder, self.manifests):
            files.clear_leftovers(folder)
        self.acts.remove_torn_line()
        if (act := self.acts.under_way()) and self.is_in_use(act["line"]["version"]):
            self.finish(act)
        if name := self.unannounced():
            files.remove(self.path_of(name))
            files.sync_folder(self.manifests)
        self.acts.end()

    def sweep(self) -> None:
        """Remove the objects that no manifest names; if a manifest is damaged, keep all."""
        faults: list[str] = []
        named = {key for one in self.readable(faults.append).values() for key in objects_of(one)}
        if not faults:
            self.objects.sweep(named)

    def draft(self, parts: Mapping[str, Tree], about: dict[str, Any]) -> Manifest:
        """Write the objects of a candidate and return its manifest."""
        for folder in (self.objects.folder, self.manifests):
            files.make_folder(folder)
        manifest = {
            "format": FORMAT,
            "package": __version__,
            "name": CANDIDATE,
            "number": 0,
            "parent": self.parent(),
            "written": now(),
            "about": about,
            "parts": {part: self.objects.keep(tree) for part, tree in parts.items()},
        }
        files.sync_folder(self.objects.folder)
        return manifest

    def announce(self, manifest: Manifest, act: dict[str, Any], takes_candidate: bool = False) -> Version:
        """Give a manifest the next number and put it in use."""
        number = self.next_number()
        manifest = manifest | {"name": f"v{number}", "number": number}
        self.switch(manifest["name"], act, signed(manifest), takes_candidate)
        return self.version_of(manifest)

    def switch(
        self, name: str, act: dict[str, Any], new: bytes | None = None, takes_candidate: bool = False
    ) -> None:
        """Put a version in use by replacing `current`, which is atomic."""
        self.acts.begin(act, name, new=new is not None, takes_candidate=takes_candidate)
        if new is not None:
            files.write_bytes(self.path_of(name), new)
        files.write_bytes(self.in_use, f"{name}\n".encode(), sync=False)
        # The version is in use; if a later step fails, the next writer finishes it from `pending`.
        with contextlib.suppress(OSError, DataError):
            files.sync_folder(self.folder)
            if found := self.acts.under_way():
                self.finish(found)

    def finish(self, act: Line) -> None:
        """The steps of an act after its version is in use."""
        self.acts.write_once(act["line"])
        if act["takes_candidate"]:
            files.remove(self.candidate)
            files.sync_folder(self.folder)  # otherwise a power cut could bring the candidate back
        self.acts.end()


def check_keep(keep: int | None) -> None:
    if keep is not None and keep < 1:
        raise ConfigError(f"keep: {keep} versions; keep at least 1")


def refuse(text: str) -> None:
    raise DataError(f"{text}. Nothing was changed in any version")
