"""ser reproduce: run the paper's tables and figures, and give a verdict for every cell."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.many_runs import GridOptions, makes_runs
from strongreplay.cli.options import (
    RESULTS,
    DataFolder,
    Device,
    ProtocolName,
    ResultsFolder,
    Seeds,
    SpreadOption,
    choose_data_folder,
    parse_seeds,
    takes_format,
)
from strongreplay.cli.reproduce_report import report_command
from strongreplay.cli.tables import Format, Table, TableCell, print_table
from strongreplay.cli.text import print_line, print_note, print_problems
from strongreplay.cli.verdict_tables import add_deviations, numbers_of, print_leads, print_verdicts
from strongreplay.errors import ConfigError, unknown
from strongreplay.progress import Bar
from strongreplay.runs.paper import FINGERPRINTS, METHODS, TARGETS, PaperCell, items

if TYPE_CHECKING:
    from strongreplay.report.verdicts import Cell
    from strongreplay.runs.config import RunConfig
    from strongreplay.runs.grid import Job, RunOptions

app = typer.Typer(
    help="The paper's tables and figures: list them, run what is missing, see what was reproduced.",
    no_args_is_help=True,
)
Only = Annotated[
    str,
    typer.Option(
        metavar="WORDS",
        help="Streams, methods, memory sizes (m200) or settings, with commas: only cells of these.",
    ),
]


@app.command("list")
@takes_format
def list_command(
    target: Annotated[str | None, typer.Argument(help=f"{', '.join(TARGETS)}; all if left out.")] = None,
    only: Only = "",
    protocol: ProtocolName = "full",
    out: ResultsFolder = RESULTS,
    quick: Annotated[bool, typer.Option("--quick", help="Without steps and hours; needs no torch.")] = False,
    spread: SpreadOption = "interval",
    form: Format = "text",
) -> None:
    """List every cell: the published number, recorded seeds, and the time of a seed on this machine.

    Example: ser reproduce list table1 --only ser,m200
    """
    from strongreplay.report.reproduction import score_text
    from strongreplay.runs.recipes import find_recipe, recipe_of
    from strongreplay.storage.records import format_settings

    chosen = choose(target, only, protocol)
    if not out.exists():
        print_note(f"{out}: no such folder, so there are no seeds; name another with --out")
    costs = {} if quick else estimates(chosen)
    rows = []
    for cell in judged(chosen, out):
        item = cell.item
        place = item.stream, item.method, item.memory_size, recipe_of(protocol)
        recipe = find_recipe(*place) if item.is_runnable else None
        settings = dict(recipe.settings if recipe else {}, **dict(item.settings))
        rows.append(
            (
                item.name,
                TableCell(score_text(cell.published), numbers_of(cell.published)),
                len(cell.records),
                *(() if quick else costs.get(item.name, ("", ""))),
                cell.verdict,
                item.note or item.why_none,
                format_settings(settings),
                recipe.source if recipe else "",
            )
        )
    times = () if quick else ("steps", "hours")
    columns = ("cell", "published", "seeds", *times, "verdict", "note", "settings", "taken from")
    long = ("note", "settings", "taken from")
    title = "published: mean ± 95 % interval (runs), in per cent; seeds: those with a record here"
    table = Table(columns, rows, title, wraps=["cell", *long], optional=long)
    print_table(add_deviations(table, spread, form), form)
    if costs:
        print_line("hours: training of one seed on one thread, about, from a trial on this machine", err=True)


def estimates(chosen: list[PaperCell]) -> dict[str, tuple[str, str]]:
    """Steps and hours of one seed, for each cell that can be run."""
    import torch

    from strongreplay.runs import estimate

    torch.set_num_threads(1)
    configs = {item.name: config_for(item, 0) for item in chosen if item.is_runnable}
    trials = list(dict.fromkeys(map(estimate.trial_of, configs.values())))
    with Bar() as bar:
        for number, trial in enumerate(trials):
            bar("timing a step of each net", number, len(trials))
            estimate.plain_step(trial)
    return {
        name: (f"{estimate.num_steps(config):,}", f"{estimate.seconds(config) / 3600:.2g}")
        for name, config in configs.items()
    }


def make_run_command(target: str) -> Callable[..., None]:
    @makes_runs
    def command(
        only: Only = "",
        seeds: Seeds = "5",
        out: ResultsFolder = RESULTS,
        data: DataFolder = None,
        device: Device = "auto",
        protocol: ProtocolName = "full",
        how: GridOptions = GridOptions(),  # noqa: B008 - it is frozen
    ) -> None:
        from strongreplay.runs.grid import RunOptions
        from strongreplay.training.parallel import under_torchrun

        if under_torchrun():
            raise ConfigError("torchrun makes one run at a time with ser run; here, use --devices N")
        chosen = choose(target, only, protocol)
        place = how.place(device)
        options = RunOptions(out, choose_data_folder(data), place, loggers=how.log, ranks=how.ranks)
        run_cells(chosen, parse_seeds(seeds), options, how)

    command.__doc__ = f"""Run what is missing of it: {TARGETS[target]}.

    Example: ser reproduce {target} --only ser --seeds 5
    """
    return command


for _target in TARGETS:
    app.command(_target)(make_run_command(_target))
app.command("report")(report_command)


def print_results(chosen: list[PaperCell], out: Path) -> None:
    """Verdicts for these cells; results of the cpu protocol have a column and verdicts on SER's lead."""
    from strongreplay.report.protocols import leads

    print_verdicts(judged([replace(item, protocol="full") for item in chosen], out))
    if chosen[0].protocol != "full":
        print_leads(leads(judged(chosen, out)))


def judged(chosen: list[PaperCell], out: Path) -> "list[Cell]":
    """The cells with their records; a missing folder has none."""
    from strongreplay.report.verdicts import judge_all
    from strongreplay.storage.records import read_folder

    records, problems = read_folder([out]) if out.exists() else ([], [])
    print_problems(problems)
    return judge_all(chosen, records)


def choose(target: str | None, only: str, protocol: str = "full") -> list[PaperCell]:
    """The cells of a target that match at least one word of every kind given."""
    from strongreplay.runs.recipes import recipe_of

    recipe_of(protocol)  # raises if there is no such protocol
    if target is not None and target not in TARGETS:
        raise unknown("target", target, TARGETS, "")
    chosen = [item for item in items(protocol) if target in (None, item.target)]
    kinds: list[Callable[[PaperCell], str]] = [
        lambda item: item.stream, lambda item: item.method, lambda item: item.scenario,
        lambda item: "" if item.memory_size is None else f"m{item.memory_size}", lambda item: item.name,
    ]  # fmt: skip
    wanted: dict[int, set[str]] = {}
    for word in filter(None, (part.strip() for part in only.split(","))):
        word = METHODS.get(word, word)
        kind = next((k for k, of in enumerate(kinds) if any(of(item) == word for item in chosen)), None)
        if kind is None:
            known = sorted({of(item) for item in chosen for of in kinds[:4]} - {""})
            raise unknown("word in --only", word, known, "See: ser reproduce list")
        wanted.setdefault(kind, set()).add(word)
    found = [item for item in chosen if all(kinds[kind](item) in words for kind, words in wanted.items())]
    for kind, words in wanted.items():
        for word in sorted(words - {kinds[kind](item) for item in found}):
            print_line(f"--only: nothing of {word} fits the other words; left out", err=True)
    if not found:
        raise ConfigError(f"--only {only}: no cell fits all of it; leave a word out. See: ser reproduce list")
    return found


def config_for(item: PaperCell, seed: int) -> "RunConfig":
    from strongreplay.runs.config import resolve
    from strongreplay.runs.recipes import recipe_of

    recipe = recipe_of(item.protocol)
    return resolve(item.stream, item.method, item.memory_size, seed, dict(item.settings), recipe)


@app.command("refresh", hidden=True)
def refresh_command() -> None:
    """After a change of recipes: write again which records belong to which cell.

    Example: ser reproduce refresh
    """
    import json

    from strongreplay.runs import recipes
    from strongreplay.storage.files import write_text

    for protocol, name in FINGERPRINTS.items():
        path = Path(recipes.__file__).parent / "published" / name
        write_text(path, json.dumps(fingerprints_now(protocol), indent=1) + "\n")
        print_line(f"{path}: renewed")


def fingerprints_now(protocol: str = "full") -> dict[str, str]:
    """The fingerprints of `runs.paper.fingerprints`, computed from the configurations."""
    from strongreplay.storage.records import fingerprint

    found = {}
    for item in items():
        try:
            found[item.name] = fingerprint(config_for(replace(item, protocol=protocol), 0).to_dict())
        except ConfigError:
            continue  # a cell that cannot be run has no record
    return found


def run_cells(chosen: list[PaperCell], seeds: list[int], options: "RunOptions", how: GridOptions) -> None:
    """Make the missing runs; several cells may need the same run."""
    from strongreplay.cli.run import exit_if_failed, make_runs
    from strongreplay.runs.grid import sort_out
    from strongreplay.storage.records import fingerprint

    runnable = [item for item in chosen if item.is_runnable]
    configs = {
        (item.stream, fingerprint(config.to_dict()), seed): config
        for item in runnable
        for seed in seeds
        for config in [config_for(item, seed)]
    }
    wanted = how.part_of(list(configs.values()))
    recorded, absent, problems = sort_out(wanted, options.out)
    there = f"{len(recorded)} recorded, {len(absent)} to make"
    print_line(f"cells {len(runnable)}, runs {len(wanted)}: {there}", err=True)

    def standing(job: "Job") -> tuple[str, str]:
        own = [item for item in runnable if item.stream == job.config.stream]
        return standing_of(own, job.config, options.out)

    progress, ended = make_runs([], absent, problems, options, how, standing)
    print_results(chosen, options.out)
    if progress.stop.asked is not None:
        stopped = sum(job.ended is not None and job.ended[0] == "stopped" for job in ended)
        print_line(f"stopped; {stopped} runs kept their state. Resume with the same command.", err=True)
        raise typer.Exit(128 + progress.stop.asked)
    exit_if_failed(ended)


def standing_of(chosen: list[PaperCell], config: "RunConfig", out: Path) -> tuple[str, str]:
    """Recorded and published numbers of the cells of a run, such as Class-IL / Task-IL."""
    from strongreplay.report.reproduction import texts
    from strongreplay.report.verdicts import judge_all
    from strongreplay.storage.records import fingerprint, read_folder, record_path

    held = config.to_dict()
    own = [item for item in chosen if item.fingerprint == fingerprint(held)]
    folder = record_path(out, held).parent
    rows = [texts(cell) for cell in judge_all(own, read_folder([folder])[0] if folder.exists() else [])]
    return " / ".join(row[2] for row in rows), " / ".join(row[1] for row in rows)


COMMAND = Command("reproduce", app, STUDY, 60)
