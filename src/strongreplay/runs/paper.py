"""The cells of the paper's tables and figures: their name, the run that reproduces them, the printed number.

Paper: Strong Experience Replay (SER); see CITATION.cff. The numbers are in `published/*.csv`, as printed; a
dash is an empty field. Table 1 is CIFAR100, Table 2 the other four datasets, Table 3 forgetting, Table 4 the
ablation; Figures 3 and 4 show accuracy on CIFAR100 after each of 10 and 20 tasks, Figure 5 matrices on
CIFAR10. Tables 1 and 2 are averages over 5 runs; for the others the paper gives no number of runs. This
module does not import torch.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from strongreplay.methods.table import METHOD_ROWS

METHODS = {row.label: name for name, row in METHOD_ROWS.items()}  # printed label -> name
TARGETS = {
    "table1": "accuracy on CIFAR100 in 5, 10 and 20 tasks",
    "table2": "accuracy on CIFAR10, TinyImageNet, P-MNIST and R-MNIST",
    "table3": "forgetting of ER, DER++ and SER",
    "table4": "ablation: SER with some of its terms",
    "figure3": "accuracy after each task, CIFAR100 in 10 tasks",
    "figure4": "accuracy after each task, CIFAR100 in 20 tasks",
    "figure5": "accuracy on each task after each task, CIFAR10",
}
NUM_RUNS = 5
TERMS = {"cls_t": "current", "cls_m": "replay", "bc_m": "backward", "fc_t": "forward"}
ABLATIONS = {
    ("current",): "sgd",
    ("current", "replay"): "replay",
    ("current", "replay", "backward"): "backward",
    ("current", "replay", "forward"): "forward",
    ("current", "replay", "backward", "forward"): "ser",
}
FINGERPRINTS = {"full": "fingerprints.json", "cpu": "fingerprints-cpu.json"}
# Cells where the paper contradicts itself.
NOTES = {
    "table2/seq-cifar10/m200/ser/task-il": "94.51 here, 95.51 in Table 4",
    "table4/seq-cifar10/m200/ser/task-il": "95.51 here, 94.51 in Table 2",
    "table1/seq-cifar100-20/m200/ser/task-il": "78.86 here, 79.86 in Table 4, which fits the text",
    "table4/seq-cifar100-20/m200/ser/task-il": "79.86 here, 78.86 in Table 1",
    "table2/seq-cifar10/sgd/class-il": "19.62 here, 19.26 in Table 4 and in the text",
    "table4/seq-cifar10/m200/sgd/class-il": "19.26 here and in the text, 19.62 in Table 2",
    "table2/seq-cifar10/m500/ser/class-il": "ahead of DER++ by 2.97 here, by 3.7 in the text",
    "table1/seq-cifar100-20/m200/ser/class-il": "ahead of LVT by 3.72 here, by 3.0 in the text",
}
# Rows of the ablation that print another method's numbers, not those of SER with fewer terms.
BORROWED = {"replay": "ER", "backward": "DER++"}


@dataclass(frozen=True, slots=True)
class PaperCell:
    """A cell: the run and the score that reproduce it, and the printed number."""

    name: str  # such as table2/p-mnist/m200/ser/domain-il
    target: str
    stream: str
    method: str
    memory_size: int | None
    scenario: str
    score: str = "average_accuracy"
    mean: float | None = None  # none if nothing is printed
    deviation: float | None = None
    count: int | None = None  # number of runs in the mean, if the paper gives it
    settings: tuple[tuple[str, Any], ...] = ()  # override those of the recipe
    why_none: str = ""
    note: str = ""
    protocol: str = "full"

    @property
    def is_runnable(self) -> bool:
        """Whether the cell has a configuration; a cell with a dash has none if it cannot be run."""
        return self.name in fingerprints(self.protocol)

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the configuration whose records are compared with the cell."""
        return fingerprints(self.protocol).get(self.name)


@cache
def items(protocol: str = "full") -> tuple[PaperCell, ...]:
    """All cells in the order of the paper; for another protocol, those that it has settings for."""
    found = [*accuracy_items(), *forgetting_items(), *ablation_items(), *figure_items()]
    found = [replace(item, protocol=protocol) for item in found]
    if protocol != "full":
        found = [item for item in found if item.is_runnable]
    return tuple(sorted(found, key=lambda item: list(TARGETS).index(item.target)))


def accuracy_items() -> Iterator[PaperCell]:
    for row in read("accuracy.csv"):
        target = "table1" if row["table"] == "tbl_cifar100" else "table2"
        stream, size = stream_of(row), int(row["buffer"]) if row["buffer"] else None
        method, scenario = METHODS[row["method"]], row["setting"]
        name = name_of(target, stream, size, method, scenario)
        yield PaperCell(
            name, target, stream, method, size, scenario,
            mean=number(row["mean"]), deviation=number(row["std"]), count=NUM_RUNS if row["mean"] else None,
            why_none="" if row["mean"] else why_none(method, stream), note=NOTES.get(name, ""),
        )  # fmt: skip


def forgetting_items() -> Iterator[PaperCell]:
    for row in read("forgetting.csv"):
        stream, size, method = stream_of(row), int(row["buffer"]), METHODS[row["method"]]
        name = name_of("table3", stream, size, method, row["setting"])
        yield PaperCell(
            name, "table3", stream, method, size, row["setting"], "forgetting", number(row["forgetting"])
        )


def ablation_items() -> Iterator[PaperCell]:
    for row in read("ablation.csv"):
        terms = tuple(term for column, term in TERMS.items() if row[column] == "1")
        stream, size = stream_of(row), int(row["buffer"])
        whole = terms == tuple(TERMS.values())
        for scenario in ("class-il", "task-il"):
            name = name_of("table4", stream, size, ABLATIONS[terms], scenario)
            yield PaperCell(
                name, "table4", stream, "ser", size, scenario, mean=number(row[scenario.replace("-", "_")]),
                settings=() if whole else (("method.terms", ",".join(terms)),),
                note=NOTES.get(name, "") or borrowed(ABLATIONS[terms], stream),
            )  # fmt: skip


def borrowed(row: str, stream: str) -> str:
    table = "Table 2" if stream == "seq-cifar10" else "Table 1"
    return f"the paper prints the number of {BORROWED[row]} in {table}" if row in BORROWED else ""


def figure_items() -> Iterator[PaperCell]:
    """Cells of figures: they have a run but no printed number."""
    shown = {
        "figure3": ("seq-cifar100-10", ("er", "derpp", "ser"), ("class-il", "task-il")),
        "figure4": ("seq-cifar100-20", ("er", "derpp", "ser"), ("class-il", "task-il")),
        "figure5": ("seq-cifar10", ("er", "derpp", "clser", "ser"), ("class-il",)),
    }
    for target, (stream, methods, scenarios) in shown.items():
        for method in methods:
            for scenario in scenarios:
                name = name_of(target, stream, 200, method, scenario)
                yield PaperCell(name, target, stream, method, 200, scenario, why_none="drawn, not printed")


def name_of(target: str, stream: str, size: int | None, method: str, scenario: str) -> str:
    return "/".join([target, stream, *([] if size is None else [f"m{size}"]), method, scenario])


def stream_of(row: dict[str, str]) -> str:
    if row["dataset"].endswith("-mnist"):
        return row["dataset"]
    return f"seq-{row['dataset']}" + (f"-{row['tasks']}" if row["dataset"] == "cifar100" else "")


def why_none(method: str, stream: str) -> str:
    """Why a cell has a dash, as explained under Table 2."""
    if stream == "seq-tinyimagenet":
        return "training takes too long on TinyImageNet, the paper says"
    if method == "co2l":
        return "its published MNIST results use a larger net, the paper says"
    return "needs task identities, which Domain-IL does not have"


def number(text: str) -> float | None:
    return float(text) if text else None


def read(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text_of(name).splitlines()))


@cache
def fingerprints(protocol: str = "full") -> dict[str, str]:
    """Cell name -> fingerprint of its configuration; read from a file, so that reports do not need torch."""
    found: dict[str, str] = json.loads(text_of(FINGERPRINTS[protocol]))
    return found


def text_of(name: str) -> str:
    return files("strongreplay.runs.recipes").joinpath("published", name).read_text(encoding="utf-8")
