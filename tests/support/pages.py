"""Records and names for the report page."""

from typing import Any

from strongreplay import resolve
from strongreplay.report.collect import Found
from strongreplay.storage.records import RunRecord

EVIL = "<script>alert('x')</script>&\"'><img src=x onerror=alert(1)>"


MEASURED: dict[str, Any] = {
    "versions": {"strongreplay": "0.1.0", "commit": "abc1234", "code": "0123456789ab"},
    "hardware": {"processor": "a fast one", "threads": 1},
    "started": "2030-01-01T00:00:00+00:00",
    "phases": {"train": {"seconds": 12.5, "peak_memory_bytes": 123456789, "peak_is_of_phase": True}},
    "recipe": "a book of recipes",
}


def scores_of(accuracy: float, num_tasks: int) -> dict[str, Any]:
    matrix = [[accuracy + task - test for test in range(num_tasks)] for task in range(num_tasks)]
    return {"matrix": matrix, "average_accuracy": accuracy, "forgetting": 100 - accuracy}


def make_record(
    config: dict[str, Any], accuracy: float, settings: tuple[str, ...] = ("domain-il",)
) -> RunRecord:
    accuracies = {setting: scores_of(accuracy, 4) for setting in settings}
    return RunRecord(config, {"accuracy": accuracies, "terms": []}, MEASURED)


def paper_record(method: str, seed: int, accuracy: float, size: int | None = 200) -> RunRecord:
    """With the settings of a cell of Table 2."""
    return make_record(resolve("p-mnist", method, size, seed).to_dict(), accuracy)


def make_found() -> Found:
    """SER and ER with five seeds, SGD with two, DER++ far too low."""
    records = [paper_record("ser", seed, 82 + seed / 2) for seed in range(5)]
    records += [paper_record("er", seed, 72 + seed / 3) for seed in range(5)]
    records += [paper_record("derpp", seed, 40 + seed / 4) for seed in range(3)]
    records += [paper_record("sgd", seed, 39 + seed, None) for seed in range(2)]
    records += [paper_record("ser", seed, 88 + seed / 5, 500) for seed in range(3)]
    return Found(records)
