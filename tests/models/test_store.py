"""Kept versions: round trips, sharing, erasure, and a kill or a full disk at every single step."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compare import assert_same
from support.contents import same_json
from support.processes import in_a_process
from support.stores import (
    ACTS,
    LEARN,
    MARK,
    RESULT,
    all_files,
    assert_contents,
    assert_whole,
    files_with,
    forget_mark,
    make_store,
    names,
    object_files,
    parts_of,
)
from torch import nn

from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.models.history import KEPT_LINES, MOST_LINES
from strongreplay.models.manifest import signed
from strongreplay.models.store import CANDIDATE, Store
from strongreplay.storage.files import manifest_sum, sha256
from strongreplay.storage.objects import Objects

ALL_KINDS = {
    "weights": torch.arange(12.0).view(3, 4),
    "layers": [torch.ones(2, dtype=torch.uint8), {"deep": (1, 2.5, None, True, "text \udc80 é")}],
    "by number": {0: {"momentum": torch.zeros(3, dtype=torch.int64)}, 1: {}},
    "0/x": torch.zeros(2),
    "0": {"x": torch.ones(2)},
    "half": torch.tensor([0.5], dtype=torch.bfloat16),
    "empty": torch.empty(0, 5),
    "flag": torch.tensor([True, False]),
    "far": [float("inf"), -0.0, 2**70],
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync does is the system's; here it only counts when it is called. Versions hold anything."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(Store, "check_manifest", staticmethod(lambda manifest, where: None))


# Reading and sharing


def test_every_kind_of_value_comes_back_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "model")
    assert not store.exists
    about = {"classes": 2, "by number": {2: "b", 10: "a"}, "accuracy": float("nan")}
    made = store.commit({"all": ALL_KINDS, "plain": [1, "a"], "one": torch.ones(())}, about, LEARN)
    version, parts = store.read()
    assert store.exists
    assert store.current == version.name == made.name == "v1"
    assert_same(parts["all"], ALL_KINDS)
    assert_same(parts["plain"], [1, "a"])
    assert_same(parts["one"], torch.ones(()))
    assert version.about["by number"] == {"2": "b", "10": "a"}
    assert (version.number, version.parent, version.parts) == (1, None, ("all", "plain", "one"))
    assert store.verify() == []


def test_tied_weights_and_views_of_one_tensor_are_kept(tmp_path: Path) -> None:
    store, whole = Store(tmp_path / "model"), torch.arange(6.0)
    layer = nn.Linear(2, 2)
    tied = nn.Sequential(layer, nn.ReLU(), layer)
    store.commit({"net": tied.state_dict(), "views": [whole, whole[2:4]]}, {}, LEARN)
    found = store.read()[1]
    assert_same(found["net"], dict(tied.state_dict()))
    assert_same(found["views"], [whole, whole[2:4]])


def test_a_net_and_its_frozen_copy_are_one_file(tmp_path: Path) -> None:
    store, weights = Store(tmp_path / "model"), torch.rand(10_000)
    store.commit({"net": {"w": weights}, "old_net": {"w": weights.clone()}}, {}, LEARN)
    assert len(object_files(store)) == 1
    assert store.versions()[0].size < 1.05 * 40_000
    found = store.read()[1]
    found["net"]["w"] += 1  # each has memory of its own once read
    assert_same(found["old_net"]["w"], weights)


def test_what_did_not_change_is_written_once(tmp_path: Path) -> None:
    store, memory = Store(tmp_path / "model"), torch.randint(0, 256, (1000, 50), dtype=torch.uint8)
    for number in range(5):
        store.commit({"memory": memory, "net": torch.full((10,), float(number))}, {}, LEARN)
    assert sum(path.stat().st_size for path in all_files(store.folder)) < 1.3 * memory.numel()
    for version in store.versions():
        assert version.size > 50_000
        assert version.own_size is not None
        assert version.own_size < 1000


def test_only_the_parts_asked_for_are_read(store: Store) -> None:
    key = store.manifest("v3")["parts"]["memory"]["object"]
    store.objects.file(key).write_bytes(b"damaged")
    assert_same(store.read(parts=["net", "labels"])[1], {"net": parts_of(3)["net"], "labels": ["cat", "dog"]})
    assert store.read(parts=[])[1] == {}
    with pytest.raises(DataError, match=f"{key}.*cut off"):
        store.read(parts=["memory"])
    with pytest.raises(DataError, match=r"v0003.json: no part \['nonsense'\]; there are \['net'"):
        store.read(parts=["nonsense"])


def test_a_candidate_is_read_by_its_name_and_counts_as_no_version(store: Store) -> None:
    version, parts = store.read(CANDIDATE)
    assert (version.number, version.parent) == (0, "v3")
    assert_same(parts, parts_of(9))
    assert names(store) == ["v1", "v2", "v3"]
    assert store.current == "v3"


def test_an_unknown_version_is_refused_with_those_there_are(store: Store) -> None:
    for name in ("v4", "v0", "v03", "3", "", "../v1", "v99999999999999999999"):
        with pytest.raises(ConfigError, match="there are: v1, v2, v3, candidate"):
            store.read(name)
        with pytest.raises(ConfigError, match="there are"):
            store.rollback(name, {"act": "rollback"})
    assert store.current == "v3"


def test_where_nothing_is_kept_it_says_so_and_makes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "typo")
    with pytest.raises(DataError, match="no model is kept there; make one"):
        store.read()
    with pytest.raises(ConfigError, match="no version 'v1'; there are: none"):
        store.rollback("v1", {"act": "rollback"})
    with pytest.raises(ConfigError, match="no version 'candidate'"):
        store.accept({"act": "accept"})
    with pytest.raises(DataError, match="no model is kept there"):
        store.prune(3)
    store.drop_candidate()
    assert store.verify() != []
    assert store.versions() == []
    assert store.history() == []
    assert not (tmp_path / "typo").exists()


def test_a_linked_folder_is_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.folder)
    assert_same(Store(tmp_path / "link").read()[1], parts_of(3))


# Versions come, go and change


def test_rollback_touches_no_object_and_the_next_number_is_new(store: Store) -> None:
    before = [(path, path.stat().st_ino, path.stat().st_mtime_ns) for path in all_files(store.objects.folder)]
    before += [(path, path.stat().st_ino, path.stat().st_mtime_ns) for path in all_files(store.manifests)]
    version = store.rollback("v1", {"act": "rollback", "why": "worse"})
    assert version.name == store.current == "v1"
    assert before == [(path, path.stat().st_ino, path.stat().st_mtime_ns) for path, *_ in before]
    assert_same(store.read()[1], parts_of(1))
    made = store.commit(parts_of(4), {"chunk": 4}, LEARN)
    assert (made.name, made.parent) == ("v4", "v1")
    assert names(store) == ["v1", "v2", "v3", "v4"]
    assert_contents(store)
    assert_whole(store)


def test_rollback_needs_a_version_that_is_there_in_full(store: Store) -> None:
    store.objects.file(store.manifest("v1")["parts"]["net"]["object"]).unlink()
    with pytest.raises(DataError, match="v1 needs it, but it is missing"):
        store.rollback("v1", {"act": "rollback"})
    with pytest.raises(ConfigError, match="by accepting it"):
        store.rollback(CANDIDATE, {"act": "rollback"})
    assert store.current == "v3"


def test_an_accepted_candidate_is_the_next_version(store: Store) -> None:
    before = {path.name for path in object_files(store)}
    version = store.accept({"act": "accept"})
    assert (version.name, version.parent, version.about) == ("v4", "v3", {"chunk": 9})
    assert store.current == "v4"
    assert before == {path.name for path in object_files(store)}
    with pytest.raises(ConfigError, match="no version 'candidate'"):
        store.read(CANDIDATE)
    assert_contents(store)
    assert_whole(store)


def test_a_candidate_learnt_from_another_version_is_not_accepted(store: Store) -> None:
    store.rollback("v2", {"act": "rollback"})
    with pytest.raises(RunError, match="learnt from v3, but v2 is in use; roll back to v3 first"):
        store.accept({"act": "accept"})
    store.rollback("v3", {"act": "rollback"})
    assert store.accept({"act": "accept"}).name == "v4"


def test_a_damaged_candidate_is_not_accepted(store: Store) -> None:
    file = store.objects.file(store.manifest(CANDIDATE)["parts"]["net"]["object"])
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="damaged"):
        store.accept({"act": "accept"})
    assert store.current == "v3"


def test_there_is_one_candidate_at_most_and_it_leaves_nothing(store: Store) -> None:
    store.stage(parts_of(8), {"chunk": 8}, {"act": "refuse"})
    assert_same(store.read(CANDIDATE)[1], parts_of(8))
    assert_whole(store)
    store.drop_candidate()
    store.drop_candidate()
    assert_whole(store)
    assert not (store.folder / "candidate.json").exists()


def test_the_first_version_can_be_a_candidate_too(tmp_path: Path) -> None:
    store = Store(tmp_path / "model")
    store.stage(parts_of(1), {"chunk": 1}, {"act": "refuse"})
    assert not store.exists
    assert store.accept({"act": "accept"}).name == "v1"
    assert_contents(store)
    assert_whole(store)


def test_pruning_keeps_the_newest_the_one_in_use_and_its_parent(store: Store) -> None:
    for number in (4, 5, 6):
        store.commit(parts_of(number), {"chunk": number}, LEARN)
    store.rollback("v3", {"act": "rollback"})
    assert store.prune(1) == ["v1", "v4", "v5"]
    assert names(store) == ["v2", "v3", "v6"]
    assert store.prune(5) == []
    assert store.commit(parts_of(7), {"chunk": 7}, LEARN).name == "v7"
    assert_contents(store)
    assert_whole(store)
    with pytest.raises(ConfigError, match="keep at least 1"):
        store.prune(0)


def test_numbers_never_come_twice(store: Store) -> None:
    (store.manifests / "v0003.json").write_text("damaged")
    store.rollback("v1", {"act": "rollback"})
    assert store.commit(parts_of(4), {"chunk": 4}, LEARN).name == "v4"
    (store.manifests / "v0004.json").unlink()  # by the user's hand
    store.rollback("v1", {"act": "rollback"})
    assert store.commit(parts_of(5), {"chunk": 5}, LEARN).name == "v5"


def test_the_history_tells_each_act_with_the_version_in_use_after_it(store: Store) -> None:
    store.rollback("v1", {"act": "rollback", "loss": float("nan")})
    store.log({"act": "export", "file": "model.onnx"})
    store.prune(1)
    found = [(line["act"], line["version"]) for line in store.history()]
    assert found == [
        *[("learn", "v1"), ("learn", "v2"), ("learn", "v3")],
        *[("refuse", "v3"), ("rollback", "v1"), ("export", "v1"), ("prune", "v1")],
    ]
    assert all(line["when"].endswith("+00:00") for line in store.history())


def test_how_many_versions_are_kept_is_remembered(tmp_path: Path) -> None:
    store = Store(tmp_path / "model")
    for number in range(1, 14):
        keep = 3 if number == 12 else None
        store.commit(parts_of(number), {"chunk": number} | store.policy(keep), LEARN)
        store.prune()
        expected = min(number, 10) if number < 12 else 3
        assert names(store) == [f"v{older}" for older in range(number - expected + 1, number + 1)]
    with pytest.raises(ConfigError, match=r"v5 was removed, .* there are: v11, v12, v13; ser learn --keep"):
        store.rollback("v5", {"act": "rollback"})
    with pytest.raises(ConfigError, match="no version 'v14'"):
        store.rollback("v14", {"act": "rollback"})
    with pytest.raises(ConfigError, match="keep at least 1"):
        store.policy(0)
    assert_whole(store)


def test_pruning_keeps_the_version_that_the_candidate_was_learnt_from(store: Store) -> None:
    store.rollback("v1", {"act": "rollback"})
    store.commit(parts_of(4), {"chunk": 4}, LEARN)
    store.commit(parts_of(5), {"chunk": 5}, LEARN)
    assert store.prune(1) == ["v1", "v2"]
    store.rollback("v3", {"act": "rollback"})
    assert store.accept({"act": "accept"}).name == "v6"


def test_a_long_history_is_shortened_and_no_number_comes_twice(store: Store) -> None:
    began, sizes = store.history()[0]["when"], list[int]()
    for number in range(4, 40):
        store.commit(parts_of(number), {"chunk": number}, LEARN)
        store.prune(2)
        store.acts.shorten(12, 6)
        sizes.append(len(store.history()))
    assert max(sizes) <= 12
    first, *rest = store.history()
    assert (first["act"], first["since"]) == ("shorten", began)
    assert first["acts"] + len(rest) == 4 + 36 + 35  # of the fixture, learnt, pruned
    assert [line["act"] for line in rest[-2:]] == ["learn", "prune"]
    assert Store(store.folder).history() == store.history()
    for _ in range(13):
        store.log({"act": "export"})
    store.acts.shorten(12, 6)
    assert {line["act"] for line in store.history()} == {"shorten", "export"}
    store.prune(1)
    (store.manifests / "v0039.json").unlink()  # by the user's hand
    store.rollback("v38", {"act": "rollback"})
    assert store.commit(parts_of(40), {"chunk": 40}, LEARN).name == "v40"


def test_a_damaged_history_is_not_shortened(store: Store) -> None:
    store.acts.lines.write_bytes(b"damaged\n" + store.acts.lines.read_bytes())
    before = store.acts.lines.read_bytes()
    store.acts.shorten(3, 1)
    assert store.acts.lines.read_bytes() == before
    store.acts.lines.write_bytes(before[8:])
    store.acts.shorten(3, 1)
    assert [line["act"] for line in store.history()] == ["shorten", "refuse"]


# Erasure


def test_erased_bytes_are_in_no_file_of_any_version(store: Store) -> None:
    assert len(files_with(store.folder, MARK)) == 4
    assert len(files_with(store.folder, b"secret")) == 4
    before = {version.name: version.written for version in store.versions()}
    assert store.rewrite(["memory"], forget_mark, {"act": "forget"}) == ["v1", "v2", "v3", CANDIDATE]
    assert files_with(store.folder, MARK, b"secret") == []
    assert before == {version.name: version.written for version in store.versions()}
    for name, number in [("v1", 1), ("v3", 3), (CANDIDATE, 9)]:
        memory = store.read(name)[1]["memory"]
        assert_same(memory["images"], torch.full((1, 32), number, dtype=torch.uint8))
        assert memory["sources"] == ["b"]
    assert_contents(store, memory=False)
    assert_whole(store)
    assert store.history()[-1]["changed"] == ["v1", "v2", "v3", CANDIDATE]
    assert store.rewrite(["memory", "nonsense"], forget_mark, {"act": "forget"}) == []


def test_a_shared_part_is_changed_once(tmp_path: Path) -> None:
    store, calls = Store(tmp_path / "model"), 0
    for number in (1, 2, 3):
        store.commit(parts_of(number) | {"memory": [torch.ones(3), float("nan")]}, {"chunk": number}, LEARN)

    def change(tree: Any) -> Any:
        nonlocal calls
        calls += 1
        return None

    assert store.rewrite(["memory"], change, {"act": "forget"}) == []
    assert calls == 1


def test_nothing_is_erased_by_halves_where_a_version_is_damaged(store: Store) -> None:
    (store.manifests / "v0002.json").write_text("{}")
    with pytest.raises(DataError, match=r"v0002.json: damaged.*Nothing was changed in any version"):
        store.rewrite(["memory"], forget_mark, {"act": "forget"})
    assert len(files_with(store.folder, MARK)) == 4


# Kills and full disks


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours catches it."""


class Steps:
    """Counts every change of the file system; from `stop` on none is made any more."""

    def __init__(self, patch: pytest.MonkeyPatch, stop: int = 10**9, full: bool = False) -> None:
        self.count, self.stop, self.full = 0, stop, full
        for name in ("replace", "fsync", "unlink", "mkdir"):
            patch.setattr(os, name, self.counted(name, getattr(os, name)))

    def counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count <= self.stop or (self.full and name == "unlink"):  # removing needs no room
                return real(*args, **kwargs)
            if name == "fsync" and stat.S_ISREG(os.fstat(args[0]).st_mode):  # the end is not on disk
                os.ftruncate(args[0], max(0, os.fstat(args[0]).st_size - 5))
            raise OSError(errno.ENOSPC, "No space left on device") if self.full else Killed

        return call


def stopped_everywhere(
    act: str, full: bool, made: Store, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Store, BaseException | None]]:
    """The store after the act was stopped at its first step, its second, and so on, and what it raised."""

    def attempt(stop: int) -> tuple[Store, int, BaseException | None]:
        folder = made.folder.with_name(f"{act}-{stop}")
        shutil.copytree(made.folder, folder)
        with monkeypatch.context() as patch:
            steps = Steps(patch, stop, full)
            try:
                ACTS[act](Store(folder))
            except (Killed, RunError) as error:
                return Store(folder), steps.count, error
        return Store(folder), steps.count, None

    whole, number, error = attempt(10**9)
    assert error is None
    assert whole.current == RESULT.get(act, "v3")
    assert number > 2
    for stop in range(number):
        store, _, error = attempt(stop)
        yield store, error


@pytest.mark.parametrize("act", ACTS)
def test_a_kill_at_any_step_leaves_everything_whole(
    act: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stopped, error in stopped_everywhere(act, False, store, monkeypatch):
        assert isinstance(error, Killed)
        faults = [fault for fault in stopped.verify() if "the next update removes it" not in fault]
        assert faults == []
        in_use = stopped.current
        assert in_use in ("v3", RESULT.get(act))
        assert_contents(stopped, memory=act != "rewrite")
        assert set(names(stopped)) <= {"v1", "v2", "v3", in_use}
        assert stopped.history()[-1]["version"] == in_use
        made = stopped.commit(parts_of(6), {"chunk": 6}, LEARN)
        assert made.parent == in_use
        assert made.name == ("v5" if in_use == "v4" else "v4")
        told = [line["version"] for line in stopped.history() if line["act"] == "learn"]
        assert told[-1] == made.name
        assert len(told) == len(set(told))
        assert_contents(stopped, memory=act != "rewrite")
        assert_whole(stopped)


@pytest.mark.parametrize("act", ACTS)
def test_a_disk_that_is_full_from_any_step_on_is_told_and_changes_nothing(
    act: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    for stopped, error in stopped_everywhere(act, True, store, monkeypatch):
        if error is None:
            assert stopped.current == RESULT.get(act, "v3")
        else:
            refused += 1
            assert "No space left on device); make room and repeat" in str(error)
            assert stopped.current == "v3"
        assert not list(stopped.folder.rglob(".new-*"))
        assert_contents(stopped, memory=act != "rewrite")
        made = stopped.commit(parts_of(6), {"chunk": 6}, LEARN)
        assert made.name == ("v5" if RESULT.get(act) == "v4" and error is None else "v4")
        assert_whole(stopped)
    assert refused > 0


@pytest.mark.parametrize("act", ["rewrite", "prune"])
def test_an_act_that_was_killed_is_finished_by_repeating_it(
    act: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stopped, _ in stopped_everywhere(act, False, store, monkeypatch):
        ACTS[act](stopped)
        assert_whole(stopped)
        assert names(stopped) == (["v2", "v3"] if act == "prune" else ["v1", "v2", "v3"])
        if act == "rewrite":
            assert files_with(stopped.folder, MARK, b"secret") == []


def test_a_kill_at_any_step_of_the_first_version_leaves_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop in range(100):
        store = Store(tmp_path / f"model-{stop}")
        with monkeypatch.context() as patch:
            Steps(patch, stop)
            try:
                store.commit(parts_of(1), {"chunk": 1}, LEARN)
                break
            except Killed:
                pass
        known = names(store)
        assert known == (["v1"] if store.exists else [])
        with store.locked():
            made = store.commit(parts_of(2), {"chunk": 2}, LEARN)
        assert (made.number, made.parent) == (len(known) + 1, known[0] if known else None)
        assert_whole(store)
    assert stop > 10


@pytest.mark.slow
def test_a_real_kill_at_any_moment(tmp_path: Path) -> None:
    store, draws = make_store(tmp_path / "model"), random.Random(0)

    def commit_on_and_on() -> None:
        with store.locked():
            for number in range(4, 10_000):
                store.commit(parts_of(number), {"chunk": number}, LEARN)
                store.prune(3)

    for _ in range(8):
        before = int(store.current[1:])
        assert in_a_process(commit_on_and_on, draws.uniform(0.02, 0.2)) == -signal.SIGKILL
        assert int(store.current[1:]) >= before
        assert [fault for fault in store.verify() if "the next update removes it" not in fault] == []
        assert_contents(store)
    with store.locked():
        store.commit(parts_of(4), {"chunk": 4}, LEARN)
    assert int(store.current[1:]) > 4
    assert_whole(store)


def test_a_file_system_that_really_refuses(store: Store) -> None:
    """The system's limit on a file's size, in a process of its own."""

    def commit_too_much() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        with pytest.raises(RunError, match=r"File too large\); make room and repeat"):
            store.commit(parts_of(4) | {"large": torch.rand(10_000)}, {"chunk": 4}, LEARN)

    assert in_a_process(commit_too_much) == 0
    assert store.current == "v3"
    assert_contents(store)
    assert_whole(store)


def test_a_second_writer_is_kept_off_and_readers_are_not(store: Store) -> None:
    other = Store(store.folder)
    with store.locked():
        with pytest.raises(RunError, match="is at work here"), other.locked():
            pass
        assert_same(other.read()[1], parts_of(3))
        store.commit(parts_of(4), {"chunk": 4}, LEARN)
    with other.locked():
        other.commit(parts_of(5), {"chunk": 5}, LEARN)
    assert_whole(store)


def test_a_reader_whose_version_is_erased_meanwhile_reads_the_new_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, load, erased = Store(store.folder), Objects.load, False

    def erase_first(self: Objects, entry: dict[str, Any], where: Path) -> Any:
        nonlocal erased
        if self is reader.objects and not erased:
            erased = True
            store.rewrite(["memory"], forget_mark, {"act": "forget"})
        return load(self, entry, where)

    monkeypatch.setattr(Objects, "load", erase_first)
    assert reader.read("v2")[1]["memory"]["sources"] == ["b"]


# Damage, malice and other people's folders


def test_a_flipped_bit_in_any_file_is_found_and_the_file_named(store: Store) -> None:
    assert store.verify() == []
    files = all_files(store.folder)
    assert len(files) > 10
    for file in files:
        data = file.read_bytes()
        for place in range(0, len(data), max(1, len(data) // 12)):
            flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            if same_json(flipped, data):
                continue
            file.write_bytes(flipped)
            assert any(file.name in fault for fault in store.verify()), (file, place)
            if file.parent == store.objects.folder:
                users = [name for name, one in store.readable().items() if file.stem in str(one["parts"])]
                for name in users:
                    with pytest.raises(DataError, match=file.stem):
                        store.read(name)
        file.write_bytes(data)
    assert store.verify() == []


@pytest.mark.parametrize("fault", ["cut", "empty", "missing", "longer", "link"])
def test_other_faults_are_found_too(fault: str, store: Store, tmp_path: Path) -> None:
    for file in all_files(store.folder):
        data = file.read_bytes()
        if fault == "missing" and file.name == "candidate.json":
            continue  # there need not be one
        file.unlink()
        if fault == "link":
            (tmp_path / "outside").write_bytes(data)
            file.symlink_to(tmp_path / "outside")
        elif fault != "missing":
            file.write_bytes({"cut": data[:-1], "empty": b"", "longer": data + b"x"}[fault])
        gone = fault == "missing" and file.parent == store.manifests and file.name != "v0003.json"
        assert bool(store.verify()) != gone, file  # a version that is gone is a forgotten one
        file.unlink(missing_ok=True)
        file.write_bytes(data)
    assert store.verify() == []


def test_a_damaged_version_is_named_and_left_out_and_its_objects_stay(store: Store) -> None:
    before, told = object_files(store), list[str]()
    (store.manifests / "v0002.json").write_text("{")
    assert [version.name for version in store.versions(told.append)] == ["v1", "v3"]
    assert len(told) == 1
    assert "v0002.json: damaged" in told[0]
    store.commit(parts_of(4), {"chunk": 4}, LEARN)
    assert set(before) <= set(object_files(store))


def test_a_damaged_object_is_mended_by_writing_it_again(store: Store) -> None:
    file = store.objects.file(store.manifest("v3")["parts"]["net"]["object"])
    file.write_bytes(b"damaged")
    store.commit(parts_of(3), {"chunk": 3}, LEARN)
    assert_whole(store)


def test_without_a_current_version_one_is_chosen_by_rollback(store: Store) -> None:
    for damage in (None, b"v9\n", b"nonsense", b"v3", b"v" + b"9" * 5000):
        store.in_use.unlink(missing_ok=True)
        if damage is not None:
            store.in_use.write_bytes(damage)
        with pytest.raises(DataError, match=r"current: .*rollback"):
            store.read()
        if damage != b"v9\n":
            with pytest.raises(DataError, match=r"current: .*rollback"):
                store.commit(parts_of(4), {"chunk": 4}, LEARN)
        store.rollback("v2", {"act": "rollback"})
        assert_same(store.read()[1], parts_of(2))
        assert names(store) == ["v1", "v2", "v3"]


def sign(file: Path, **changes: Any) -> None:
    """Other entries and a sum that fits again: an attacker can do that much."""
    content = json.loads(file.read_text()) | changes
    content["sum"] = manifest_sum(content)
    file.write_text(json.dumps(content))


ENTRY = {"tree": {"tensor": ""}, "object": "0" * 64, "bytes": 8}
ATTACKS: dict[str, dict[str, Any]] = {
    "elsewhere": {"parts": {"net": ENTRY | {"object": "../../outside"}}},
    "absolute": {"parts": {"net": ENTRY | {"object": "/etc/passwd"}}},
    "ends in a line": {"parts": {"net": ENTRY | {"object": "0" * 64 + "\n"}}},
    "object a number": {"parts": {"net": ENTRY | {"object": 7}}},
    "bytes below nothing": {"parts": {"net": ENTRY | {"bytes": -1}}},
    "bytes a text": {"parts": {"net": ENTRY | {"bytes": "8"}}},
    "bytes beyond all": {"parts": {"net": ENTRY | {"bytes": 10**300}}},
    "no tree": {"parts": {"net": {"object": None, "bytes": 0}}},
    "a list of parts": {"parts": [ENTRY]},
    "a part a list": {"parts": {"net": []}},
    "unknown tensor": {"parts": {"net": {"tree": {"tensor": "x"}, "object": None, "bytes": 0}}},
    "two kinds": {"parts": {"net": {"tree": {"list": [], "dict": []}, "object": None, "bytes": 0}}},
    "a list for a value": {"parts": {"net": {"tree": [1], "object": None, "bytes": 0}}},
    "list as key": {"parts": {"net": {"tree": {"dict": [[[], 1]]}, "object": None, "bytes": 0}}},
    "other name": {"name": "v2"},
    "other number": {"number": 2},
    "parent elsewhere": {"parent": "../v1"},
    "parent a list": {"parent": ["v1"]},
    "about a text": {"about": "text"},
    "written a number": {"written": 7},
    "format a text": {"format": "1"},
    "format 0": {"format": 0},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_manifest_with_a_sum_that_fits_is_refused(attack: str, store: Store) -> None:
    sign(store.manifests / "v0003.json", **ATTACKS[attack])
    with pytest.raises(DataError):
        store.read()
    assert store.verify() != []
    store.rollback("v1", {"act": "rollback"})
    assert_same(store.read()[1], parts_of(1))


def test_bytes_that_are_no_manifest_are_refused(store: Store) -> None:
    file = store.manifests / "v0003.json"
    deep = b'{"sum":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for data in (deep, b"[]", b"7", b'"a"', b"null", b'{"sum":' + b"9" * 10_000 + b"}", b"\xff\xfe", b""):
        file.write_bytes(data)
        with pytest.raises(DataError, match=r"v0003.json"):
            store.read()


def test_objects_that_hold_no_tensors_are_refused(store: Store) -> None:
    file = store.manifests / "v0003.json"
    header = json.dumps({"": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 2**62]}}).encode()
    for data in (
        len(header).to_bytes(8, "little") + header,
        (2**63 - 1).to_bytes(8, "little") + b"{}",
        b"\x80",
    ):
        store.objects.file(sha256(data)).write_bytes(data)
        entry = {"tree": {"tensor": ""}, "object": sha256(data), "bytes": len(data)}
        sign(file, parts={"net": entry})
        with pytest.raises(DataError, match="not a part of a model"):
            store.read()


def test_a_newer_format_says_update(store: Store) -> None:
    sign(store.manifests / "v0003.json", format=2)
    with pytest.raises(DataError, match="format 2 is newer than 1; update strongreplay"):
        store.read()


def test_a_forged_act_under_way_takes_no_announced_version_away(store: Store) -> None:
    lines: list[Any] = [{"version": "v1"}, {"version": "../x"}, {"version": 7}, [], {}]
    for line in lines:
        store.acts.pending.write_text("{}")
        sign(store.acts.pending, line=line, new=True, takes_candidate=False)
        store.log({"act": "look"})
        assert names(store) == ["v1", "v2", "v3"]
        assert_whole(store)


def test_a_folder_of_photos_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for number, name in enumerate(("cat/1.jpg", "objects/1.jpg", "versions/1.jpg", "current/1.jpg", "a.txt")):
        folder = tmp_path / f"photos-{number}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"photo")
        before = sorted(folder.rglob("*"))
        store = Store(folder)
        with pytest.raises(DataError, match="holds other things and no model"), store.locked():
            pass
        with pytest.raises(DataError, match="choose an empty folder or a new name"):
            store.commit(parts_of(1), {}, LEARN)
        assert sorted(folder.rglob("*")) == before


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    store = Store(tmp_path / "model")
    with pytest.raises(DataError, match="a file where the folder of a model should be"), store.locked():
        pass
    with pytest.raises(DataError, match="no model is kept there"):
        store.read()
    with pytest.raises(RunError, match="could not be written"):
        Store(tmp_path / "model" / "inside").commit(parts_of(1), {}, LEARN)
    assert (tmp_path / "model").read_text() == "mine"


def test_links_inside_the_folder_are_not_written_through(store: Store, tmp_path: Path) -> None:
    shutil.move(store.objects.folder, tmp_path / "elsewhere")
    store.objects.folder.symlink_to(tmp_path / "elsewhere")
    before = all_files(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="a link where a file should be"):
        store.read()
    with pytest.raises(DataError, match="objects: a link"):
        store.commit(parts_of(4), {"chunk": 4}, LEARN)
    assert all_files(tmp_path / "elsewhere") == before


def test_the_users_own_notes_beside_a_model_are_left_alone(store: Store) -> None:
    (store.folder / "notes.txt").write_text("mine")
    (store.objects.folder / "notes.txt").write_text("mine")
    store.commit(parts_of(4), {"chunk": 4}, LEARN)
    store.prune(1)
    assert (store.folder / "notes.txt").exists()
    assert (store.objects.folder / "notes.txt").exists()


def test_what_cannot_be_kept_changes_nothing(store: Store) -> None:
    with pytest.raises(TypeError, match="only tensors and plain values are kept"):
        store.commit({"net": torch.ones(3), "wrong": {"a": {1, 2}}}, {}, LEARN)
    with pytest.raises(TypeError):
        store.commit({"net": torch.ones(3)}, {"wrong": object()}, LEARN)
    assert store.current == "v3"
    assert store.verify() == []


def test_a_line_without_a_version_is_damaged(store: Store) -> None:
    before, told = store.history(), list[str]()
    with store.acts.lines.open("ab") as file:
        file.write(signed({"when": "now", "act": "learn"}) + b"\n")
    assert store.history(told.append) == before
    assert ["not about an act" in text for text in told] == [True]


def test_pruning_shortens_a_history_of_a_thousand_lines(store: Store) -> None:
    line = store.acts.lines.read_bytes().split(b"\n")[0] + b"\n"
    store.acts.lines.write_bytes(line * (MOST_LINES + 1))
    store.prune(1)
    assert len(store.history()) == KEPT_LINES + 1
    assert store.history()[0]["acts"] == MOST_LINES + 2 - KEPT_LINES
