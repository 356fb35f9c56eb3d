"""ser status: what a kept model knows, remembers and takes."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strongreplay.cli.tables import counted, moment, per_cent, print_json, print_table, say, size

if TYPE_CHECKING:
    from rich.console import Console

    from strongreplay.models.memory_view import Remembered
    from strongreplay.models.store import Store, Version


def status_command(
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="Folder of the model, as made by: ser learn")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Long tables as a whole.")] = False,
) -> None:
    """Show what a model knows: classes and when they were learnt, its memory, its versions."""
    from strongreplay.cli.show import open_console
    from strongreplay.models.store import Store

    told = account(Store(state), lambda text: typer.echo(f"note: {text}", err=True))
    if as_json:
        print_json(told)
        return
    console = open_console()
    print_model(console, told)
    print_classes(console, told, everything)
    print_memory(console, told["memory"])
    print_versions(console, told, everything)
    print_waiting(console, state, told)


def account(store: "Store", tell: Callable[[str], None]) -> dict[str, Any]:
    """All that is shown, as plain values."""
    from strongreplay.models.budget import Budget
    from strongreplay.models.memory_view import KINDS, read_parts, samples_of

    version, parts = read_parts(store, None)
    found, model, samples = store.versions(tell), parts["model"], samples_of(parts)
    line, plan = lineage(found, version.name), model["plan"]
    entries = store.manifest(version.name)["parts"]
    kinds = {
        kind: {
            "samples": sum(sample.kind == kind for sample in samples),
            "bytes": entries[part]["bytes"] if part in entries else 0,
        }
        for part, kind in KINDS.items()
    }
    return {
        "version": version.name,
        "written": version.written,
        "from": version.parent,
        "data": data_of(store.history(), version.name),
        "net": {key: value for key, value in plan["net"].items() if value is not None},
        "method": plan["learner"]["method"],
        "shape": list(model["shape"]),
        "lessons": model["lessons"],
        "classes": classes_of(model, line, samples),
        "known_since": line[0].name if line[0].parent else None,
        "memory": {
            "budget": str(Budget.parse(plan["learner"]["memory"])),
            "room": model["capacity"],
            "stored_as": plan["learner"]["store"],
            **kinds,
        },
        "versions": [
            {
                "version": one.name,
                "written": one.written,
                "from": one.parent,
                "bytes": one.size,
                "shared_bytes": one.size - (one.own_size or 0),
            }
            for one in found
        ],
        "bytes": folder_bytes(store.folder),
        "candidate": candidate_of(store),
        "stopped": stopped_of(store),
    }


def folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a writer may be at work
            total += path.stat().st_size if path.is_file() else 0
    return total


def lineage(versions: "Sequence[Version]", name: str) -> "list[Version]":
    """A version and what it was learnt from, as far back as it is kept, the oldest first."""
    known = {version.name: version for version in versions}
    line: list[Version] = []
    place: str | None = name
    while place in known:
        line.append(known.pop(place))
        place = line[-1].parent
    return line[::-1]


def data_of(history: Sequence[dict[str, Any]], name: str) -> str | None:
    """What the user gave when a version was learnt."""
    lines = [line for line in history if line.get("version") == name and line.get("data")]
    return next((line["data"] for line in lines if line.get("act") in ("learn", "accept")), None)


def classes_of(
    model: dict[str, Any], line: "Sequence[Version]", samples: "Sequence[Remembered]"
) -> list[dict[str, Any]]:
    fixed = model["plan"]["learner"]["classes"] is not None
    kept = Counter((sample.label, sample.kind) for sample in samples)
    weights: Counter[Any] = Counter()
    for sample in samples:
        weights[sample.label] += sample.bytes
    met: list[Counter[Any]] = [Counter(dict(map(tuple, one.about["chunk"]["samples"]))) for one in line]
    knew = met if fixed else [set(one.about["labels"]) for one in line]
    tallies, found = [(one.name, tally(one.about)) for one in reversed(line)], []
    for label in model["labels"]:
        learnt = (one.name for one, labels in zip(line, knew, strict=True) if label in labels)
        right, count, where = next(
            ((*counts[label], name) for name, counts in tallies if label in counts), (0, 0, None)
        )
        found.append(
            {
                "label": label,
                "learnt_in": next(learnt, None),
                "samples": sum(chunk[label] for chunk in met),
                "replay": kept[label, "replay"],
                "held_out": kept[label, "held-out"],
                "bytes": weights[label],
                "accuracy": 100 * right / count if count else None,
                "judged_by": count,
                "measured_in": where,
            }
        )
    return found


def tally(about: dict[str, Any]) -> dict[Any, tuple[int, int]]:
    """By class: right answers and samples, of all that were held out for it, or else of guards."""
    guard, held = dict[Any, tuple[int, int]](), dict[Any, tuple[int, int]]()
    for change in about["changes"]:
        counts = round(change["after"] * change["count"] / 100), change["count"]
        (held if change["where"] == "held-out" else guard)[change["label"]] = counts
    for label, right, count in about["fresh"]:
        before = held.get(label, (0, 0))
        held[label] = before[0] + right, before[1] + count
    return guard | held


def candidate_of(store: "Store") -> dict[str, Any] | None:
    from strongreplay.models.learn import verdict_of
    from strongreplay.models.store import CANDIDATE

    if CANDIDATE not in store.names():
        return None
    version, _ = store.read(CANDIDATE, parts=())
    refused = [line for line in store.history() if line.get("act") == "refuse"]
    return {
        "written": version.written,
        "from": version.parent,
        "data": refused[-1].get("data") if refused else None,
        "fallen": [
            {"label": change.label, "before": change.before, "after": change.after, "where": change.where}
            for change in verdict_of(version.about).fallen
        ],
    }


def stopped_of(store: "Store") -> dict[str, Any] | None:
    from strongreplay.errors import DataError
    from strongreplay.models.store import WORK
    from strongreplay.storage.state import checkpoints, read_manifest

    for path in checkpoints(store.folder / WORK):
        try:
            manifest = read_manifest(path)
        except DataError:  # a killed one; the next update tells of it
            continue
        return {"written": manifest["written"], "step": manifest.get("step")}
    return None


def print_model(console: "Console", told: dict[str, Any]) -> None:
    source = f", learnt from {told['from']}" if told["from"] else ""
    data = f" with {told['data']}" if told["data"] else ""
    say(console, f"{told['version']} is in use, written {moment(told['written'])} UTC{source}{data}")
    shape = " x ".join(map(str, told["shape"]))
    what = f"images of {shape}" if len(told["shape"]) == 3 else f"{shape} features"
    net = " ".join(f"{value}" if key == "name" else f"{key} {value}" for key, value in told["net"].items())
    lessons = counted(told["lessons"], "lesson")
    say(console, f"net {net}, method {told['method']}, takes {what}; {lessons} so far\n")


def print_classes(console: "Console", told: dict[str, Any], everything: bool) -> None:
    from strongreplay.cli.tables import MOST

    classes, title = told["classes"], counted(len(told["classes"]), "class").replace("classs", "classes")
    if len(classes) > MOST and not everything:
        classes = sorted(classes, key=lambda one: 101.0 if one["accuracy"] is None else one["accuracy"])
        title += ", the worst first"
    rows = []
    for one in classes:
        learnt, first = one["learnt_in"] or "-", told["known_since"]
        late = "" if one["measured_in"] in (None, told["version"]) else f" ({one['measured_in']})"
        rows.append(
            [
                str(one["label"]),
                f"{learnt} or before" if learnt == first else learnt,
                f"{one['samples']:,}",
                f"{one['replay']:,}",
                f"{one['held_out']:,}",
                size(one["bytes"]),
                per_cent(one["accuracy"]) + late,
                f"{one['judged_by']:,}",
            ]
        )
    columns = ("class", "learnt in", "samples", "replay", "held out", "kept", "accuracy", "of")
    print_table(console, title, columns, rows, everything=everything, folded=("class",))
    if told["known_since"]:
        say(console, f"samples are counted since {told['known_since']}; older versions are gone")


def print_memory(console: "Console", memory: dict[str, Any]) -> None:
    replay, held = memory["replay"], memory["held-out"]
    say(
        console,
        f"memory: budget {memory['budget']}, stored as {memory['stored_as']}; "
        f"{counted(replay['samples'], 'sample')} to replay, room for {memory['room']:,} "
        f"({size(replay['bytes'])} on disk); {held['samples']:,} held out ({size(held['bytes'])} on disk)\n",
    )


def print_versions(console: "Console", told: dict[str, Any], everything: bool) -> None:
    rows = [
        [
            one["version"] + (" *" if one["version"] == told["version"] else ""),
            moment(one["written"]),
            one["from"] or "-",
            size(one["bytes"]),
            size(one["shared_bytes"]),
        ]
        for one in reversed(told["versions"])
    ]
    title = (
        f"{counted(len(rows), 'version')} (* in use), the newest first; {size(told['bytes'])} on disk in all"
    )
    print_table(
        console, title, ("version", "written (UTC)", "from", "size", "shared"), rows, everything=everything
    )


def print_waiting(console: "Console", state: Path, told: dict[str, Any]) -> None:
    if candidate := told["candidate"]:
        data = f" of {candidate['data']}" if candidate["data"] else ""
        say(
            console,
            f"a refused update{data} from {candidate['from']} waits, {moment(candidate['written'])} UTC; "
            f"see: ser diff {state} {candidate['from']} candidate; use it with: ser learn {state} --accept",
        )
    if stopped := told["stopped"]:
        say(
            console,
            f"an update was stopped after step {stopped['step']}, {moment(stopped['written'])} UTC; the same "
            "ser learn goes on with it, --restart forgets it",
        )
