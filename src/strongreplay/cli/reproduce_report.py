"""ser reproduce report: a verdict for every cell of the paper, on the screen and in files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.compare import find_records
from strongreplay.cli.options import RESULTS, Margin, ResultsFolder, SpreadOption, takes_format
from strongreplay.cli.tables import Format
from strongreplay.cli.text import print_line, print_text
from strongreplay.cli.verdict_tables import print_leads, print_verdicts
from strongreplay.errors import DataError
from strongreplay.progress import Bar
from strongreplay.runs.paper import items

if TYPE_CHECKING:
    from strongreplay.report.collect import Found
    from strongreplay.report.verdicts import Cell
    from strongreplay.storage.records import RunRecord


@takes_format
def report_command(
    out: ResultsFolder = RESULTS,
    to: Annotated[Path, typer.Option("--to", help="Output folder.")] = Path("report"),
    every: Annotated[bool, typer.Option("--all", help="Show cells without records, too.")] = False,
    figures: Annotated[bool, typer.Option("--figures", help="Also every figure as PNG and SVG.")] = False,
    readme: Annotated[
        bool, typer.Option("--readme", help="Only renew the tables of README.md and docs/results.md here.")
    ] = False,
    margin: Margin = 2.0,
    spread: SpreadOption = "interval",
    form: Format = "text",
) -> None:
    """Show a verdict for every cell, and write it as Markdown, CSV, LaTeX and HTML.

    With --csv, --json, --latex or --markdown the table goes to stdout in that format, and no file is written.

    Example: ser reproduce report --to report
    """
    from strongreplay.report import protocols
    from strongreplay.report.reproduction import counts
    from strongreplay.report.verdicts import judge_all

    found = find_records([out])
    if readme:
        renew_tables(found.records)
        return
    cells = judge_all(items(), found.records, margin)
    print_verdicts([cell for cell in cells if every or cell.records or cell.cpu], spread, form)
    if form != "text":
        return  # nothing but the table, and no files
    print_leads(protocols.leads(protocols.cpu_cells(found.records)))
    summary = ", ".join(f"{number} {verdict}" for verdict, number in counts(cells).items())
    print_text(f"{len(cells)} cells: {summary}")
    print_text(protocols.summary(found.records))
    try:
        write_report(found, cells, to, figures)
    except OSError as error:
        raise DataError(
            f"{to}: cannot be written ({error.strerror or error}); choose another with --to"
        ) from None
    names = "verdicts.md, verdicts.csv, verdicts.tex, report.html" + (", figures" if figures else "")
    print_line(f"written to {to}: {names}")


def write_report(found: "Found", cells: "list[Cell]", folder: Path, figures: bool) -> None:
    from strongreplay.report import protocols
    from strongreplay.report.figures import all_figures
    from strongreplay.report.page import build
    from strongreplay.report.paired import compare_cells
    from strongreplay.report.reproduction import as_csv, as_latex, as_markdown
    from strongreplay.report.svg import save
    from strongreplay.report.tables import group_records
    from strongreplay.storage.files import write_text

    markdown = as_markdown(cells, compare_cells(cells)) + protocols.as_markdown(found.records)
    write_text(folder / "verdicts.md", markdown)
    write_text(folder / "verdicts.csv", as_csv(cells))
    write_text(folder / "verdicts.tex", as_latex(cells))
    with Bar() as bar:
        groups = group_records(found.records) if figures else []
        for name, figure in all_figures(groups, cells if figures else [], bar):
            save(figure, folder / "figures", name)
        write_text(folder / "report.html", build(found, bar, margin=cells[0].margin))


def renew_tables(records: "list[RunRecord]") -> None:
    from strongreplay.report.markdown import renew
    from strongreplay.storage.files import write_text

    files = [path for path in (Path("README.md"), Path("docs/results.md")) if path.exists()]
    if not files:
        raise DataError(f"{Path().resolve()}: no README.md in here; go to the folder that has it")
    for path in files:
        before = path.read_text(encoding="utf-8")
        after = renew(before, records)
        write_text(path, after)
        print_line(f"{path}: {'unchanged' if after == before else 'tables renewed'}")
