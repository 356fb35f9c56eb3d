"""RunRecord: the results of one seed of one configuration, as one JSON file. It does not import torch.

`results` depends on the configuration: the same configuration, seed, versions and machine give the same bits.
`measured` does not: time, memory, hardware, versions, dates.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strongreplay import metrics
from strongreplay.errors import DataError
from strongreplay.storage import files

FORMAT = 1
MAX_BYTES = 2**26  # of a record
DEEPEST = 32  # levels of a record; more would break recursive functions such as `flatten`
PER_CENT = 100 + 1e-6  # a mean may be rounded up


@dataclass(frozen=True, slots=True)
class RunRecord:
    config: dict[str, Any]
    results: dict[str, Any]
    measured: dict[str, Any]
    format: int = FORMAT

    def __repr__(self) -> str:
        """Such as RunRecord(split-digits, ser, memory 20, seed 0: class-il 71.25 %, task-il 94.17 %)."""
        size = "" if self.memory_size is None else f", memory {self.memory_size}"
        known = {name: self.score(name, "average_accuracy") for name in self.scenarios}
        scores = ", ".join(f"{name} {value:.2f} %" for name, value in known.items() if value is not None)
        return f"RunRecord({self.stream}, {self.method}{size}, seed {self.seed}: {scores or 'no scores'})"

    @property
    def stream(self) -> str:
        return str(self.config["stream"])

    @property
    def method(self) -> str:
        return str(self.config["method"]["name"])

    @property
    def memory_size(self) -> int | None:
        size = self.config["method"].get("memory_size")
        return None if size is None else int(size)

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def scenarios(self) -> list[str]:
        """The scenarios that have accuracies, such as ["class-il", "task-il"]."""
        return list(self.results["accuracy"])

    @property
    def protocol(self) -> str:
        """cpu or full. It follows from the source of the recipe, which no setting of a run can change."""
        return "cpu" if str(self.measured.get("recipe", "")).startswith("cpu protocol") else "full"

    @property
    def place(self) -> str:
        """The stream, the protocol unless it is the paper's, and whether training data were held out.

        Then the accuracies are those on the held-out data. Only runs of one place are compared.
        """
        name, data = self.stream, self.config.get("data")
        name += "" if self.protocol == "full" else f"-{self.protocol}"
        is_held_out = isinstance(data, dict) and data.get("validation")
        return f"{name} (held-out training data)" if is_held_out else name

    @property
    def has_own_peak(self) -> bool:
        """Whether the peak memory is this run's own.

        Records without a hash of our code are older than the repair of a leak: runs in one process kept each
        other's memory, so their peaks grow from run to run and are not shown.
        """
        return "code" in self.measured.get("versions", {})

    def matrix(self, scenario: str) -> list[list[float | None]]:
        rows: list[list[float | None]] = self.results["accuracy"][scenario]["matrix"]
        return rows

    @property
    def nets(self) -> dict[str, Any]:
        """For a method with several nets that predict: the accuracies of each, in the form of `accuracy`."""
        found: dict[str, Any] = self.results.get("accuracy_of", {})
        return found

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    def score(self, scenario: str, name: str) -> float | None:
        """One number, such as score("class-il", "average_accuracy"); computed if an old record lacks it."""
        held = self.results["accuracy"][scenario]
        if name in held or name not in metrics.METRICS:
            value: float | None = held.get(name)
            return value
        matrix = metrics.as_matrix(held["matrix"])
        width = matrix.shape[1]
        untrained = metrics.as_matrix([held.get("untrained", []), [None] * width])[0, :width]
        return metrics.compute(name, matrix, untrained)


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def format_setting(value: Any) -> str:
    """A setting in the form of the command line; a list becomes current,replay."""
    if value is None:
        return "none"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def format_settings(settings: dict[str, Any]) -> str:
    """Settings as they are typed, separated by spaces, because commas make lists."""
    return " ".join(f"{key}={format_setting(value)}" for key, value in settings.items())


def fingerprint(config: dict[str, Any]) -> str:
    """A hash of a configuration without its seed, ten characters long.

    Settings that are None are left out, so that a new option with the default None changes no name.
    """
    held = {key: value for key, value in flatten(config).items() if key != "seed" and value is not None}
    text = json.dumps(held, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def safe_name(name: str) -> str:
    """A name for files: `mine.py:Thing` becomes Thing; characters that file systems refuse become a dash."""
    file, _, thing = name.rpartition(":")
    return re.sub(r"[^\w.+-]+", "-", thing if file.endswith(".py") else name).lstrip(".-") or "unnamed"


def record_path(folder: Path, config: dict[str, Any]) -> Path:
    """The path of a configuration's record: DIR/stream/method-memory-fingerprint/seed-N.json."""
    method = config["method"]
    size = method.get("memory_size")
    name = "-".join(
        [safe_name(method["name"]), *([f"m{size}"] if size is not None else []), fingerprint(config)]
    )
    return folder / safe_name(str(config["stream"])) / name / f"seed-{config['seed']}.json"


def write_record(folder: Path, record: RunRecord) -> Path:
    path = record_path(folder, record.config)
    files.write_text(path, record.to_json())
    return path


def read_record(path: Path) -> RunRecord:
    """Read one record, or raise a DataError that says what is wrong with the file."""
    remedy = "remove it and run again"
    if not os.path.lexists(path):
        raise DataError(f"{path}: no such record; see the files in {path.parent}")
    data = files.read_bytes(path, MAX_BYTES, remedy, follow=True)
    try:
        raw = files.parse_json(data.decode(), DEEPEST)
    except ValueError as error:
        raise DataError(f"{path}: not readable as JSON ({error}); {remedy}") from None
    if not isinstance(raw, dict) or type(raw.get("format")) is not int:
        raise DataError(f"{path}: not a run record (no format number); {remedy}")
    if raw["format"] > FORMAT:
        raise DataError(f"{path}: record format {raw['format']} is newer than {FORMAT}; update strongreplay")
    try:
        # Python reads infinities and lone surrogates from JSON, but they cannot be written or shown again.
        json.dumps(raw, allow_nan=False, ensure_ascii=False).encode()
        check_config(raw["config"])
        for scenario, scores in raw["results"]["accuracy"].items():
            check_scores(scores, f"accuracy of {scenario}")
        check_measured(raw["measured"])
        return RunRecord(raw["config"], raw["results"], raw["measured"], raw["format"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: not a whole run record ({type(error).__name__}: {error}); {remedy}"
        ) from None


def _expect(holds: bool, rule: str, got: object) -> None:
    if not holds:
        raise _unexpected(rule, got)


def _unexpected(rule: str, got: object) -> ValueError:
    return ValueError(f"expected {rule}, got {str(got)[:80]}")


def _is_number(value: object, limit: float) -> bool:
    """Whether the value is a number within the limit; bool is refused, although Python counts it as int."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= limit


def check_config(config: dict[str, Any]) -> None:
    """Check the entries that name and group records; `RunConfig` checks the rest before a run."""
    method = config["method"]
    for key, name in (("stream", config["stream"]), ("method.name", method["name"])):
        _expect(isinstance(name, str) and name != "", f"a name as {key}", name)
    size = method.get("memory_size")
    for key, value in (("seed", config["seed"]), ("method.memory_size", 0 if size is None else size)):
        _expect(type(value) is int, f"a whole number as {key}", value)


def check_scores(scores: dict[str, Any], where: str) -> None:
    """Check the accuracy matrix (per cent or null, at least as many columns as rows) and the numbers."""
    rows = scores["matrix"]
    _expect(
        isinstance(rows, list) and all(isinstance(row, list) and row for row in rows),
        f"{where}: rows of numbers",
        rows,
    )
    _expect(0 < len(rows) <= max(map(len, rows), default=0), f"{where}: a column for each row", rows)
    numbers = {key: value for key, value in scores.items() if key not in ("matrix", "untrained")}
    flat = [*(value for row in rows for value in row), scores["average_accuracy"], *numbers.values()]
    for value in (*flat, *scores.get("untrained", ())):
        if value is not None and not _is_number(value, PER_CENT):
            raise _unexpected(f"{where}: per cent or null", value)


def check_measured(measured: dict[str, Any]) -> None:
    for key in ("phases", "versions", "hardware"):
        _expect(isinstance(measured.get(key, {}), dict), f"a table of {key}", measured.get(key))
    for name, phase in measured.get("phases", {}).items():
        for key in ("seconds", "peak_memory_bytes"):
            _expect(_is_number(phase[key], 2**63), f"a number as {key} of {name}", phase[key])


def read_folder(paths: Iterable[Path]) -> tuple[list[RunRecord], list[str]]:
    """All records in files and folders, and a line for each JSON file that is not a record."""
    records: list[RunRecord] = []
    problems: list[str] = []
    for path in paths:
        for file in find_files(path, problems):
            try:
                records.append(read_record(file))
            except DataError as error:
                problems.append(str(error))
    return records, problems


def find_files(place: Path, problems: list[str]) -> list[Path]:
    """Every JSON file in a folder, or the file itself.

    Folders of checkpoints and logs are skipped: they are beside the records and contain JSON files too.
    Files that disappear during the search are ignored, because active runs remove checkpoints.
    """

    def add_problem(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            problems.append(f"{error.filename}: cannot be searched ({error.strerror}); make it readable")

    if not os.path.isdir(place):  # unlike Path.is_dir, it never raises
        return [place]
    found = []
    for folder, inside, names in os.walk(place, onerror=add_problem):
        inside[:] = [name for name in inside if not name.endswith((".state", ".logs"))]
        found += [Path(folder, name) for name in names if name.endswith(".json")]
    return sorted(found)
