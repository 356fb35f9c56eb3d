"""ser show: the contents of records, and the runs of a cell of the paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.compare import read_records
from strongreplay.cli.options import RESULTS, ResultsFolder, SpreadOption, takes_format
from strongreplay.cli.tables import Entry, Format, Table, TableCell, print_table
from strongreplay.cli.text import print_line, print_text
from strongreplay.errors import ConfigError, unknown

if TYPE_CHECKING:
    from strongreplay.report.summary import Spread
    from strongreplay.runs.paper import PaperCell
    from strongreplay.storage.records import RunRecord


@takes_format
def show_command(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Records, folders of them, or cells of the paper; see: ser reproduce list"),
    ],
    out: ResultsFolder = RESULTS,
    spread: SpreadOption = "interval",
    config: Annotated[
        bool, typer.Option("--config", help="Print the configuration as a file for: ser run --config FILE")
    ] = False,
    form: Format = "text",
) -> None:
    """Print records: settings, accuracy after each task, time and memory.

    Example: ser show runs/split-digits/*/seed-0.json
    """
    from strongreplay.runs.paper import TARGETS, items

    if config:
        if form != "text":
            raise ConfigError(f"--config and --{form} exclude each other; give one of them")
        from strongreplay.runs.sweep_file import write_sweep

        print_line(write_sweep(read_records(paths)))
        return

    cells = {item.name: item for item in items()}
    for path in paths:
        if path.parts[:1] and path.parts[0] in TARGETS and not path.exists():
            if str(path) not in cells:
                near = f"See: ser reproduce list {path.parts[0]}"
                raise unknown("cell", str(path), cells, near)
            print_cell(cells[str(path)], out, form, spread)
        elif form == "text":
            for record in read_records([path]):
                print_record(record)
        else:
            print_table(make_accuracy_table(read_records([path])), form)


def print_cell(item: "PaperCell", out: Path, form: Format, spread: "Spread") -> None:
    """Print the published number, the result of each seed, settings and commit."""
    from strongreplay.report import protocols
    from strongreplay.report.reproduction import table_title, texts
    from strongreplay.report.verdicts import judge_all

    records = read_records([out])
    cell = judge_all([item], records)[0]
    table = make_seeds_table(item, cell.records, out)
    if form != "text":
        print_table(table, form)
        return
    _, published, ours, gap, verdict, cpu, note = texts(cell)
    print_line(f"── {item.name}", bold=True)
    print_text(table_title(cell.margin))
    print_text(f"published {published}, ours {ours}, difference {gap or '-'}: {verdict}")
    if spread == "sd":
        known = {"published": cell.published, "ours": cell.ours}
        print_line(f"sample deviation: {join_scores({k: s.deviation for k, s in known.items() if s})}")
    if cell.cpu:
        print_line(f"under the cpu protocol: {cpu}; not comparable with the printed number")
        for lead in protocols.leads(protocols.cpu_cells(records)):
            if lead.other.name == item.name:
                print_text(f"under the cpu protocol, {lead.sentence}")
    if note:
        print_text(f"note: {note}")
    if not cell.records:
        print_line(f"no records in {out}; make some with: ser reproduce {item.target}")
        return
    print_table(table)
    config = cell.records[0].config
    print_settings({key: value for key, value in config.items() if key != "seed"})
    print_text(f"recipe: {cell.records[0].measured.get('recipe', '-')}")
    print_line("")


def make_seeds_table(item: "PaperCell", records: "Sequence[RunRecord]", out: Path) -> Table:
    from strongreplay.storage.records import record_path

    rows: list[list[Entry]] = []
    for record in records:
        measured, score = record.measured, record.score(item.scenario, item.score)
        seconds = measured.get("phases", {}).get("train", {}).get("seconds")
        rows.append(
            [
                record.seed,
                TableCell(f"{score:.2f}", score),
                TableCell("-" if seconds is None else f"{seconds:.1f}", seconds),
                str(measured.get("started", "-"))[:19],
                str(measured.get("versions", {}).get("commit", "-")),
                str(record_path(out, record.config)),
            ]
        )
    columns = ("seed", item.score.replace("_", " "), "train s", "started", "commit", "record")
    return Table(columns, rows, optional=["train s", "started", "commit"])


def print_settings(config: dict[str, Any]) -> None:
    from strongreplay.storage.records import flatten, format_settings

    print_text(f"settings: {format_settings(flatten(config))}")


def print_record(record: "RunRecord") -> None:
    from strongreplay.methods.table import method_label
    from strongreplay.metrics import METRICS
    from strongreplay.report.styles import TITLES

    size = "" if record.memory_size is None else f", memory {record.memory_size}"
    print_line(f"── {record.place}, {method_label(record.method)}{size}, seed {record.seed}", bold=True)
    for scenario in record.scenarios:
        title = f"{TITLES.get(scenario, scenario)}: accuracy (%) by task"
        print_table(make_matrix_table(record, scenario, title))
        print_text(join_scores({key: record.score(scenario, key) for key in METRICS}))
        nets = {name: scores[scenario]["average_accuracy"] for name, scores in record.nets.items()}
        if nets:
            print_line(f"average accuracy of each net: {join_scores(nets)}")
    print_settings(record.config)
    measured = record.measured
    phases = (
        f"{name} {phase['seconds']:.1f} s" + (peak_text(phase) if record.has_own_peak else "")
        for name, phase in measured.get("phases", {}).items()
    )
    print_text(f"phases: {'; '.join(phases)}")
    facts = {
        **measured.get("versions", {}),
        **measured.get("hardware", {}),
        "started": measured.get("started"),
    }
    print_text(f"made with: {', '.join(f'{key} {value}' for key, value in facts.items())}")
    print_text(f"recipe: {measured.get('recipe', '-')}")
    print_line("")


def peak_text(phase: dict[str, Any]) -> str:
    return f", peak {phase['peak_memory_bytes'] / 2**20:,.0f} MiB"


def join_scores(scores: dict[str, float | None]) -> str:
    known = {key: value for key, value in scores.items() if value is not None}
    return ", ".join(f"{key.replace('_', ' ')} {value:.2f}" for key, value in known.items())


def make_matrix_table(record: "RunRecord", scenario: str, title: str = "") -> Table:
    """Accuracy on each task, after each task."""
    matrix = record.matrix(scenario)
    rows: list[list[Entry]] = [
        [
            "all" if len(matrix) < len(row) else str(index + 1),
            *(TableCell("" if value is None else f"{value:.1f}", value) for value in row),
        ]
        for index, row in enumerate(matrix)
    ]
    return Table(["after", *(str(task + 1) for task in range(len(matrix[-1])))], rows, title)


def make_accuracy_table(records: "list[RunRecord]") -> Table:
    """The matrices of all records with one number per row."""
    from strongreplay.methods.table import method_label
    from strongreplay.report.styles import TITLES

    rows: list[list[Entry]] = [
        [
            record.place,
            TableCell(method_label(record.method), record.method),
            record.memory_size,
            record.seed,
            TableCell(TITLES.get(scenario, scenario), scenario),
            after + 1,
            task + 1,
            TableCell(f"{value:.2f}", value),
        ]
        for record in records
        for scenario in record.scenarios
        for after, row in enumerate(record.matrix(scenario))
        for task, value in enumerate(row)
        if value is not None
    ]
    columns = ("stream", "method", "memory", "seed", "scenario", "after task", "task", "accuracy")
    return Table(columns, rows, num_keys=5)


COMMAND = Command("show", show_command, STUDY, 40)
