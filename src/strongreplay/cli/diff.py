"""ser diff: what is different between two versions of a kept model."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strongreplay.cli.report import Bar
from strongreplay.cli.tables import per_cent, print_json, print_table, say
from strongreplay.cli.update_output import listed

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from strongreplay.models.store import Store

NOT_WEIGHTS = ("running_mean", "running_var", "num_batches_tracked")  # of batch norm
Name = Annotated[str, typer.Argument(metavar="VERSION", help="Such as v3, or candidate.")]
OnProgress = Callable[[str, int, int], None]


def diff_command(
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="Folder of the model, as made by: ser learn")
    ],
    first: Name,
    second: Name,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Long tables as a whole.")] = False,
) -> None:
    """Show what a version has that another has not: classes, accuracy, memory, weights, settings.

    Both answer the same held-out samples: those of either version that the other does not replay.
    """
    from strongreplay.cli.show import open_console
    from strongreplay.models.store import Store

    with Bar() as bar:
        told = difference(Store(state), first, second, bar)
    if as_json:
        print_json(told)
        return
    console = open_console()
    say(console, f"{first} → {second}")
    say(console, f"new classes: {listed(told['new_classes']) or 'none'}")
    if told["gone_classes"]:
        say(console, f"classes {second} does not know: {listed(told['gone_classes'])}")
    print_accuracy(console, told, first, second, everything)
    print_samples(console, told["memory"], everything)
    print_weights(console, told, everything)
    for key, (before, after) in told["settings"].items():
        say(console, f"setting {key}: {before} → {after}")
    if not told["settings"]:
        say(console, "settings: the same")


def difference(store: "Store", first: str, second: str, progress: OnProgress) -> dict[str, Any]:
    """All that is shown, as plain values."""
    from strongreplay.models.memory_view import KINDS, read_parts
    from strongreplay.storage.records import flatten

    wanted = ("model", "net", "method", *KINDS)
    old, new = (read_parts(store, name, wanted)[1] for name in (first, second))
    known, now = (dict.fromkeys(parts["model"]["labels"]) for parts in (old, new))
    plans = [flatten(parts["model"]["plan"]) for parts in (old, new)]
    keys = dict.fromkeys([*plans[0], *plans[1]])
    pairs = {key: [plan.get(key) for plan in plans] for key in keys}
    accuracy, note = accuracies(old, new, progress)
    return {
        "first": first,
        "second": second,
        "new_classes": [label for label in now if label not in known],
        "gone_classes": [label for label in known if label not in now],
        "accuracy": accuracy,
        "accuracy_note": note,
        "memory": came_and_went(old, new),
        "weights": weight_changes(old["net"], new["net"]),
        "new_rows": len(new["net"]["head.bias"]) - len(old["net"]["head.bias"]),
        "settings": {key: pair for key, pair in pairs.items() if pair[0] != pair[1]},
    }


def accuracies(
    old: Mapping[str, Any], new: Mapping[str, Any], progress: OnProgress
) -> tuple[list[dict[str, Any]], str | None]:
    """Of each class both know, the largest loss first; or why there are none."""
    import torch

    from strongreplay.models.gate import compare, count_right
    from strongreplay.models.model import TO_ANSWER, model_of
    from strongreplay.models.settings import OWN

    if old["model"]["shape"] != new["model"]["shape"]:
        return [], "the two take samples of different shapes"
    if OWN in [parts["model"]["plan"]["net"]["name"] for parts in (old, new)]:
        return [], "accuracy is not measured: a net of its user's own answers in Python alone"
    images, labels = held_by_either(old, new)
    if not labels:
        return [], "no sample is held out of a class that both know"
    tallies, total = [], 2 * len(labels)
    for turn, parts in enumerate((old, new)):
        done = turn * len(labels)
        model = model_of({part: parts[part] for part in TO_ANSWER}, torch.device("cpu"))
        answers = []
        for batch in images.split(100):
            progress("judging", done, total)
            answers += model.answers(batch)
            done += len(batch)
        tallies.append(count_right(answers, labels))
    changes = compare(tallies[0], tallies[1], labels, "held-out")
    return [
        {"label": change.label, "count": change.count, "before": change.before, "after": change.after}
        for change in sorted(changes, key=lambda change: -change.drop)
    ], None


def held_by_either(old: Mapping[str, Any], new: Mapping[str, Any]) -> "tuple[Tensor, list[Any]]":
    """Samples held out by one and not replayed by the other, each once, of classes that both know."""
    from strongreplay.models.memory_view import all_images, names_of, samples_of

    both = {*old["model"]["labels"]} & {*new["model"]["labels"]}
    found = [(samples_of(parts), names_of(parts), all_images(parts)) for parts in (old, new)]
    replayed = {
        name
        for samples, names, _ in found
        for one, name in zip(samples, names, strict=True)
        if one.kind == "replay"
    }
    chosen: dict[str, tuple[Any, Any]] = {}
    for samples, names, images in found:
        for sample, name, image in zip(samples, names, images, strict=True):
            if name not in replayed and sample.label in both:
                chosen[name] = (image, sample.label)
    return stacked([image for image, _ in chosen.values()]), [label for _, label in chosen.values()]


def stacked(images: "list[Tensor]") -> "Tensor":
    import torch

    return torch.stack(images) if images else torch.empty(0)


def came_and_went(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By class: samples that only one of the two remembers."""
    from strongreplay.models.memory_view import names_of, samples_of

    before, after = (
        {
            (name, sample.kind): sample.label
            for sample, name in zip(samples_of(parts), names_of(parts), strict=True)
        }
        for parts in (old, new)
    )
    came = Counter((label, key[1]) for key, label in after.items() if key not in before)
    went = Counter((label, key[1]) for key, label in before.items() if key not in after)
    labels = dict.fromkeys([*old["model"]["labels"], *new["model"]["labels"]])
    rows = [
        {
            "label": label,
            "replay_came": came[label, "replay"],
            "replay_went": went[label, "replay"],
            "held_out_came": came[label, "held-out"],
            "held_out_went": went[label, "held-out"],
        }
        for label in labels
    ]
    return [row for row in rows if any(value for key, value in row.items() if key != "label")]


def weight_changes(old: "Mapping[str, Tensor]", new: "Mapping[str, Tensor]") -> list[dict[str, Any]]:
    """Of each layer the norm of the change by the norm before, the largest first; new rows do not count."""
    squares: dict[str, list[float]] = {}
    for key, before in old.items():
        layer, _, own = key.rpartition(".")
        after = new.get(key)
        if own in NOT_WEIGHTS or after is None or after.shape[1:] != before.shape[1:]:
            continue
        rows = min(len(before), len(after)) if before.dim() else None
        first, second = (
            tensor[:rows].double() if rows is not None else tensor.double() for tensor in (before, after)
        )
        entry = squares.setdefault(layer, [0.0, 0.0])
        entry[0] += (second - first).square().sum().item()
        entry[1] += first.square().sum().item()
    changes = [
        {"layer": layer, "change": (moved / norm) ** 0.5 if norm else None}
        for layer, (moved, norm) in squares.items()
    ]
    return sorted(changes, key=lambda entry: -(entry["change"] or 0.0))


def print_accuracy(
    console: "Console", told: dict[str, Any], first: str, second: str, everything: bool
) -> None:
    if told["accuracy_note"]:
        say(console, told["accuracy_note"])
        return
    rows = [
        [
            str(one["label"]),
            f"{one['count']:,}",
            per_cent(one["before"]),
            per_cent(one["after"]),
            f"{one['after'] - one['before']:+.1f}",
        ]
        for one in told["accuracy"]
    ]
    columns = ("class", "samples", first, second, "change")
    title = "\naccuracy in per cent on held-out samples"
    print_table(console, title, columns, rows, everything=everything, folded=("class",))


def print_samples(console: "Console", memory: list[dict[str, Any]], everything: bool) -> None:
    rows = [
        [
            str(one["label"]),
            f"+{one['replay_came']:,}",
            f"-{one['replay_went']:,}",
            f"+{one['held_out_came']:,}",
            f"-{one['held_out_went']:,}",
        ]
        for one in memory
    ]
    if not rows:
        say(console, "memory: the same samples")
        return
    columns = ("class", "replay: came", "went", "held out: came", "went ")
    print_table(console, "samples remembered", columns, rows, everything=everything, folded=("class",))


def print_weights(console: "Console", told: dict[str, Any], everything: bool) -> None:
    rows = [
        [one["layer"], "-" if one["change"] is None else f"{100 * one['change']:.2f} %"]
        for one in told["weights"]
    ]
    grown = f"; {told['new_rows']} new in the head are not counted" if told["new_rows"] > 0 else ""
    title = f"weights: norm of the change by the norm before, of rows both have{grown}"
    print_table(console, title, ("layer", "change"), rows, everything=everything)
