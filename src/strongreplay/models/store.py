"""Store: the acts that change the versions of a kept model, each whole or not at all.

Nothing counts before `current` is replaced: one that is killed leaves the last version in use and whole, and
the next act finishes what it was at or takes it back. A writer holds `locked()` around all it does.
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


class Store(VersionFolder):
    """The versions in a folder, which need not be there before the first `commit`."""

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
            self.acts.append(act, self.peek())
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
                self.objects.load(entry, self.candidate)
            return self.announce(manifest, act, takes_candidate=True)

    def drop_candidate(self) -> None:
        """Forget the refused update, if there is one."""
        with self.writing():
            if os.path.lexists(self.candidate):
                files.remove(self.candidate)
                files.sync_folder(self.folder)  # first the manifest is gone for good, then what it names
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
                files.remove(self.path_of(name))
            files.sync_folder(self.manifests)
            self.sweep()
            if gone:
                self.acts.append({"act": "prune", "forgotten": gone}, self.peek())
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
        wanted, known, changed = set(part_names), dict[str, Entry](), list[str]()
        with self.writing():
            for name, manifest in self.readable(refuse).items():
                parts = manifest["parts"]
                for part in wanted & set(parts):
                    key = json.dumps(parts[part])
                    if key not in known:  # versions share parts: each is changed once
                        tree = change(self.objects.load(parts[part], self.path_of(name)))
                        known[key] = parts[part] if tree is None else self.objects.keep(tree)
                    parts = parts | {part: known[key]}
                rewritten = manifest | {"parts": parts, "about": retell(manifest["about"])}
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
        """Around every act: first what a killed one left is cleared; an error of the disk is a RunError."""
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
        for folder in (self.folder, self.objects.folder, self.manifests):
            files.clear_leftovers(folder)
        self.acts.mend()
        if (act := self.acts.under_way()) and self.is_in_use(act["line"]["version"]):
            self.finish(act)
        if name := self.unannounced():
            files.remove(self.path_of(name))
            files.sync_folder(self.manifests)
        self.acts.end()

    def sweep(self) -> None:
        """Remove the objects that no manifest names; a damaged manifest might name any, then all stay."""
        faults: list[str] = []
        named = {key for one in self.readable(faults.append).values() for key in objects_of(one)}
        if not faults:
            self.objects.sweep(named)

    def draft(self, parts: Mapping[str, Tree], about: dict[str, Any]) -> Manifest:
        """The manifest of a candidate whose objects are on disk."""
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
        """Put a version in use; before `current` is replaced nothing has happened, after it all has."""
        self.acts.begin(act, name, new=new is not None, takes_candidate=takes_candidate)
        if new is not None:
            files.write_bytes(self.path_of(name), new)
        files.write_bytes(self.in_use, f"{name}\n".encode(), sync=False)
        # The version is in use: what fails from here on is finished by the next writer, from `pending`
        with contextlib.suppress(OSError, DataError):
            files.sync_folder(self.folder)
            if found := self.acts.under_way():
                self.finish(found)

    def finish(self, act: Line) -> None:
        """What is left to do once a version is in use."""
        self.acts.write_once(act["line"])
        if act["takes_candidate"]:
            files.remove(self.candidate)
            files.sync_folder(self.folder)  # or the candidate could come back after a power cut
        self.acts.end()


def refuse(text: str) -> None:
    raise DataError(f"{text}. Nothing was changed in any version")
