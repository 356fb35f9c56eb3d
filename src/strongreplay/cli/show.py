"""ser show and ser compare: records as tables and a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strongreplay.errors import DataError, unknown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from strongreplay.report.tables import Group
    from strongreplay.runs.paper import PaperCell
    from strongreplay.storage.records import RunRecord


def compare_command(
    paths: Annotated[list[Path], typer.Argument(help="Folders of records, or records.")],
    picture: Annotated[
        Path | None, typer.Option(help="Where the picture goes.", show_default="into the first folder")
    ] = None,
) -> None:
    """Print a table of mean accuracy and forgetting over seeds, and draw accuracy after each task."""
    present(load(paths), paths[0] if paths[0].is_dir() else paths[0].parent, picture)


def show_command(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Records, folders of them, or cells of the paper; see: ser reproduce list"),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the records of a cell.")] = Path(
        "results"
    ),
) -> None:
    """Print what records hold: settings, accuracy after each task, time and memory."""
    from strongreplay.runs.paper import TARGETS, items

    console, cells = open_console(), {item.name: item for item in items()}
    for path in paths:
        if path.parts[0] in TARGETS and not path.exists():
            if str(path) not in cells:
                raise unknown("cell", str(path), cells, "See: ser reproduce list")
            show_cell(console, cells[str(path)], out)
        else:
            for record in load([path]):
                show_record(console, record)


def show_cell(console: "Console", item: "PaperCell", out: Path) -> None:
    """The runs behind a cell: what is published, what came of each seed, settings and commit."""
    from rich.table import Table

    from strongreplay.report.reproduction import texts
    from strongreplay.report.verdicts import judge_all
    from strongreplay.storage.records import record_path

    cell = judge_all([item], load([out]))[0]
    _, published, ours, gap, verdict, cpu, note = texts(cell)
    console.rule(item.name, align="left")
    console.print(f"published {published}, ours {ours}, difference {gap or '-'}: {verdict}", highlight=False)
    if cell.cpu:
        console.print(f"under the cpu protocol: {cpu}", highlight=False)
    if note:
        console.print(f"note: {note}", highlight=False)
    if not cell.records:
        console.print(f"no records in {out}; make some with: ser reproduce {item.target}", highlight=False)
        return
    table = Table()
    for column in ("seed", item.score.replace("_", " "), "train s", "started", "commit", "record"):
        table.add_column(column, no_wrap=column != "record")
    for record in cell.records:
        measured = record.measured
        seconds = measured.get("phases", {}).get("train", {}).get("seconds")
        table.add_row(
            str(record.seed),
            f"{record.score(item.scenario, item.score):.2f}",
            "-" if seconds is None else f"{seconds:.1f}",
            str(measured.get("started", "-"))[:19],
            str(measured.get("versions", {}).get("commit", "-")),
            str(record_path(out, record.config)),
        )
    console.print(table)
    show_settings(console, {key: value for key, value in cell.records[0].config.items() if key != "seed"})
    recipe = cell.records[0].measured.get("recipe", "-")
    console.print(f"recipe: {recipe}\n", highlight=False, soft_wrap=True)


def show_settings(console: "Console", config: dict[str, Any]) -> None:
    """As they are typed: a space between two of them, as commas make lists."""
    from strongreplay.storage.records import flatten, told

    settings = " ".join(f"{key}={told(value)}" for key, value in flatten(config).items())
    console.print(f"settings: {settings}", highlight=False, soft_wrap=True, markup=False)


def load(paths: list[Path]) -> "list[RunRecord]":
    """All records found; what is damaged or foreign is named and passed over."""
    from strongreplay.storage.records import read_folder

    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give what ser run wrote with --out")
    records, problems = read_folder(paths)
    for problem in problems:
        typer.echo(f"passed over {problem}", err=True)
    if not records:
        raise DataError(
            f"no records in {', '.join(map(str, paths))}; make some with: ser run STREAM --out DIR"
        )
    return records


def present(records: "list[RunRecord]", folder: Path, picture: Path | None = None) -> None:
    """One table and one picture a stream and protocol."""
    from strongreplay.report.curves import accuracy_curves
    from strongreplay.report.tables import group_records

    groups = group_records(records)
    console = open_console()
    names = list(dict.fromkeys(group.place for group in groups))
    for name in names:
        own = [group for group in groups if group.place == name]
        console.print(comparison(name, own))
        path = picture or folder / f"{name}.png"
        if picture and len(names) > 1:
            path = picture.with_stem(f"{picture.stem}-{name}")
        try:
            console.print(f"picture: {accuracy_curves(own, path)}", soft_wrap=True, highlight=False)
        except OSError as error:
            raise DataError(
                f"{path}: the picture cannot be written ({error.strerror or error}), all records are there; "
                f"make room and draw it with: ser compare {folder}"
            ) from None


def open_console() -> "Console":
    """As wide as the terminal; in a file or a pipe, wide enough for any table."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)


def comparison(stream: str, groups: "list[Group]") -> "Table":
    """Mean ± deviation over seeds, the best of each column in bold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from strongreplay.report.styles import TITLES

    scenarios = [s for s in TITLES if any(s in group.records[0].scenarios for group in groups)]
    numbers = [("average_accuracy", "accuracy", max), ("forgetting", "forgetting", min)]
    title = f"{stream}: mean ± deviation over n seeds, in per cent; best in bold"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("method", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    columns: list[list[str]] = []
    for scenario in scenarios:
        for score, heading, best_of in numbers:
            cells = [group.score(scenario, score) for group in groups]
            # Joint training is an upper bound, not a competitor.
            rivals = [
                cell.mean
                for cell, group in zip(cells, groups, strict=True)
                if cell and group.method != "joint"
            ]
            best = best_of(rivals) if rivals else None
            columns.append([bold(str(cell or "-"), cell is not None and cell.mean == best) for cell in cells])
            table.add_column(f"{TITLES[scenario]}\n{heading}", justify="right", no_wrap=True)
    table.add_column("n", justify="right")
    for group, *texts in zip(groups, *columns, strict=True):
        size = "-" if group.memory_size is None else str(group.memory_size)
        table.add_row(group.name, size, *texts, str(len(group.records)))
    return table


def bold(text: str, wanted: bool) -> str:
    return f"[bold]{text}[/bold]" if wanted else text


def show_record(console: "Console", record: "RunRecord") -> None:
    from rich.table import Table

    from strongreplay.metrics import METRICS
    from strongreplay.report.styles import TITLES

    size = "" if record.memory_size is None else f", memory {record.memory_size}"
    console.rule(f"{record.stream}, {record.method}{size}, seed {record.seed}", align="left")
    for scenario in record.scenarios:
        rows = record.matrix(scenario)
        table = Table(title=f"{TITLES.get(scenario, scenario)}: accuracy (%) by task", title_justify="left")
        table.add_column("after")
        for task in range(len(rows[-1])):
            table.add_column(f"{task + 1}", justify="right")
        for index, row in enumerate(rows):
            after = "all" if len(rows) < len(row) else str(index + 1)
            table.add_row(after, *("" if value is None else f"{value:.1f}" for value in row))
        console.print(table)
        scores = {key: record.score(scenario, key) for key in METRICS}
        told = (f"{key.replace('_', ' ')} {value:.2f}" for key, value in scores.items() if value is not None)
        console.print(", ".join(told), highlight=False)
        nets = {name: scores[scenario]["average_accuracy"] for name, scores in record.nets.items()}
        if nets:
            told = (f"{name} {value:.2f}" for name, value in nets.items() if value is not None)
            console.print(f"average accuracy of each net: {', '.join(told)}", highlight=False)
    show_settings(console, record.config)
    measured = record.measured
    phases = (
        f"{name} {phase['seconds']:.1f} s, peak {phase['peak_memory_bytes'] / 2**20:,.0f} MiB"
        for name, phase in measured.get("phases", {}).items()
    )
    console.print(f"phases: {'; '.join(phases)}", highlight=False, soft_wrap=True)
    facts = {
        **measured.get("versions", {}),
        **measured.get("hardware", {}),
        "started": measured.get("started"),
    }
    console.print(
        f"made with: {', '.join(f'{k} {v}' for k, v in facts.items())}", highlight=False, soft_wrap=True
    )
    console.print(f"recipe: {measured.get('recipe', '-')}\n", highlight=False, soft_wrap=True)
