"""The package's errors; every message says where, which rule, what was got and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

NAMED = 50  # most names listed in a message; there may be thousands


class SerError(Exception):
    """Base of all errors that the user can fix; the command line prints the message without a traceback."""


class ConfigError(SerError, ValueError):
    """An invalid setting, name or combination of settings."""


class DataError(SerError, ValueError):
    """A file or array that is missing, damaged or of the wrong kind."""


class RunError(SerError, RuntimeError):
    """A run that had to stop; what it had recorded is kept."""


def printable(text: str) -> str:
    """The text with escape codes for all control characters, which a terminal or page could interpret.

    These include the marks that change the writing direction and can make one name look like another.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def unknown(kind: str, name: str, known: Iterable[str], remedy: str) -> ConfigError:
    """The error for a name that is not in a table, with the closest known name."""
    nearest = get_close_matches(name, known := list(known), n=1, cutoff=0.4)
    more = f" and {len(known) - NAMED:,} more" if len(known) > NAMED else ""
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(known[:NAMED])}{more}."
    return ConfigError(f"unknown {kind} '{name}'; {hint} {remedy}".rstrip())
