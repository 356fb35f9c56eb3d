"""Many records in little memory: equal parts are kept once, and nothing else changes."""

import tracemalloc
from copy import deepcopy
from pathlib import Path

from support.records import make_record

from strongreplay.report.collect import collect
from strongreplay.storage.interning import Interner
from strongreplay.storage.records import RunRecord, read_record, write_record


def test_a_slim_record_is_the_record_without_loss_terms() -> None:
    record = make_record()
    record.results["terms"] = [[{"loss": 0.5}]]
    record.results["accuracy"]["class-il"]["forgetting"] = -0.0
    record.measured["phases"] = {"train": {"seconds": 1.0, "peak_memory_bytes": 1}}
    before, sharing = deepcopy(record), Interner()
    slim, again = sharing.slim(record), sharing.slim(deepcopy(record))
    assert slim == again
    assert str(slim.results["accuracy"]["class-il"]["forgetting"]) == "-0.0"
    assert slim.results == {key: value for key, value in before.results.items() if key != "terms"}
    assert (slim.config, slim.measured, slim.format) == (before.config, before.measured, before.format)
    assert type(slim.measured["phases"]["train"]["peak_memory_bytes"]) is int
    assert slim.config["method"] is again.config["method"]


def test_a_further_record_takes_a_fraction_of_its_own_size(tmp_path: Path) -> None:
    """What fifty thousand records need is the growth from one to the next."""
    matrix = [
        [50 + (row * column) % 40 + 0.5 if column <= row else None for column in range(20)]
        for row in range(20)
    ]
    for seed in range(40):
        record = make_record()
        record.results["accuracy"]["class-il"]["matrix"] = matrix
        record.results["terms"] = [
            [{"loss": seed + number / 7, "replay": seed - number / 9} for number in range(50)]
        ]
        write_record(tmp_path, RunRecord(record.config | {"seed": seed}, record.results, record.measured))
    paths = sorted(tmp_path.rglob("*.json"))
    read_record(paths[0])
    tracemalloc.start()
    whole = [read_record(path) for path in paths]
    of_whole = tracemalloc.get_traced_memory()[0]
    del whole
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    found = collect([tmp_path])
    of_slim = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert len(found.records) == 40
    assert of_slim < 0.4 * of_whole
