"""The errors raised on purpose; every message says where, which rule, what was got, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

NAMED = 50  # names in a sentence; a user's classes may be thousands


class SerError(Exception):
    """Base of every error that is the user's to mend; the command line shows its text and no traceback."""


class ConfigError(SerError, ValueError):
    """A setting, name or combination of settings that cannot be run."""


class DataError(SerError, ValueError):
    """A file or array that is missing, damaged or not what its name says."""


class RunError(SerError, RuntimeError):
    """A run that had to stop, with what was recorded so far kept."""


def printable(text: str) -> str:
    """The text with its code for every sign that a terminal or a page could take for a command.

    Among them are the marks that turn the direction of writing and make one name look like another.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def unknown(kind: str, name: str, known: Iterable[str], remedy: str) -> ConfigError:
    """The one sentence for every name that is not in a table."""
    nearest = get_close_matches(name, known := list(known), n=1, cutoff=0.4)
    more = f" and {len(known) - NAMED:,} more" if len(known) > NAMED else ""
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(known[:NAMED])}{more}."
    return ConfigError(f"unknown {kind} '{name}'; {hint} {remedy}".rstrip())
