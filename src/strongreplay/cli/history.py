"""ser history: every act on a kept model, and its effect."""

from typing import TYPE_CHECKING

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import AsJson, ShowAll, StateFolder
from strongreplay.cli.tables import Table, print_table
from strongreplay.cli.text import count_of, format_per_cent, format_time, join_names, print_json, print_note

if TYPE_CHECKING:
    from strongreplay.models.inspect import HistoryEntry


def history_command(state: StateFolder, as_json: AsJson = False, everything: ShowAll = False) -> None:
    """Show every act: what was learnt, refused, accepted, saved, rolled back, forgotten, pruned.

    Example: ser history kept
    """
    from strongreplay.models.inspect import read_history
    from strongreplay.models.store import Store

    entries = read_history(Store(state), print_note)
    if as_json:
        print_json([entry.to_dict() for entry in entries])
        return
    rows = [
        (
            format_time(entry.when),
            entry.act,
            entry.version or "-",
            describe_act(entry),
            ", ".join(map(str, new)) if everything else join_names(new),
            describe_change(entry),
            format_per_cent(entry.fresh),
        )
        for entry in reversed(entries)
        for new in [entry.new_classes or ()]
    ]
    columns = ("when (UTC)", "act", "version", "what", "new classes", "old\nclasses %", "new\ndata %")
    title = f"{count_of(len(entries), 'act')}, the newest first"
    print_table(Table(columns, rows, title, wraps=["what", "new classes"]), everything=everything)


def describe_change(entry: "HistoryEntry") -> str:
    if entry.old_before is None:
        return "-"
    return f"{format_per_cent(entry.old_before)} → {format_per_cent(entry.old_after)}"


def describe_act(entry: "HistoryEntry") -> str:
    """The data or versions of an act, in a few words."""
    details = entry.details
    if entry.act == "rollback":
        return f"from {details.get('from') or '?'}"
    if entry.act == "prune":
        return f"without {', '.join(details.get('forgotten', []))}"
    if entry.act == "shorten":
        return f"{count_of(details['acts'], 'older act')} since {format_time(details['since'])}"
    if entry.act == "forget":
        changed = ", ".join(details.get("changed", [])) or "no version"
        return f"{count_of(details.get('samples', 0), 'sample')} in {changed}"
    samples = f", {count_of(details['samples'], 'sample')}" if "samples" in details else ""
    accepted = ", accepted" if details.get("accepted") else ""
    return f"{details.get('data', '')}{samples}{accepted}"


COMMAND = Command("history", history_command, KEEP, 50)
