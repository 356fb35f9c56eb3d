"""ser rollback: put another version of a kept model in use."""

from typing import Annotated

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import StateFolder
from strongreplay.cli.text import print_line, print_note


def rollback_command(
    state: StateFolder,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The one to use, such as v3.")],
) -> None:
    """Put another version in use; nothing is copied or removed.

    Example: ser rollback kept v3
    """
    from strongreplay.models.store import WORK, Store
    from strongreplay.models.switch_version import roll_back

    store = Store(state)
    before = roll_back(store, version)
    if before == version:
        print_line(f"{version} is in use already")
        return
    print_line(f"{version} is in use now")
    if before:
        print_line(f"undo with: ser rollback {state} {before}")
    if (store.folder / WORK).exists():
        print_note("an update of another version was stopped; ser learn --restart removes it")


COMMAND = Command("rollback", rollback_command, KEEP, 70)
