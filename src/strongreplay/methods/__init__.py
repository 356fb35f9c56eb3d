"""Methods: ways to learn a stream. METHODS has the built-in ones; `method_row` also finds users' methods.

Importing this module does not load torch: a method's file is loaded when the method is built.
"""

from typing import TYPE_CHECKING, Any

from strongreplay.errors import ConfigError, unknown
from strongreplay.extensions import installed, is_path, load_object
from strongreplay.methods.row import MethodRow, row_of_class
from strongreplay.methods.table import METHOD_ROWS

if TYPE_CHECKING:
    from torch import nn

    from strongreplay.methods.base import Method, MethodConfig
    from strongreplay.protocol import Problem

METHODS: dict[str, MethodRow] = METHOD_ROWS

__all__ = [
    "METHODS", "Method", "MethodConfig", "MethodRow", "build_method", "check_scenario", "method_row",
    "scored_scenarios",
]  # fmt: skip


def method_row(name: str, source_hash: str | None = None) -> MethodRow:
    """The row of a built-in method, of `mine.py:Thing`, or of a method from an installed package.

    If `source_hash` is given, the source of a user's method must have that hash.
    """
    if name in METHODS:
        return METHODS[name]
    if not is_path(name) and name not in (offered := installed("method")):
        raise unknown("method", name, [*METHODS, *offered], "See: ser list methods")
    found = load_object(name, "method", source_hash)
    from strongreplay.methods.base import Method

    if not (isinstance(found.value, type) and issubclass(found.value, Method)):
        got = f"a {type(found.value).__name__}" if not isinstance(found.value, type) else "another class"
        raise ConfigError(f"{name} must be a class derived from strongreplay.Method, got {got}")
    return row_of_class(name, found.value, found.source_hash)


def scored_scenarios(scenario: str) -> tuple[str, ...]:
    """In which scenarios a stream is scored: one with disjoint tasks both with and without the task known."""
    return ("class-il", "task-il") if scenario == "class-il" else (scenario,)


def check_scenario(method: MethodRow | str, scenario: str, stream: str) -> None:
    """Raise an error that says why, if the method does not support the scenario."""
    row = method_row(method) if isinstance(method, str) else method
    if not set(scored_scenarios(scenario)) & set(row.scenarios):
        raise ConfigError(f"{row.name} {row.refusal}; {stream} is {scenario.title().replace('Il', 'IL')}")


def build_method(name: str, net: "nn.Module", problem: "Problem", **settings: object) -> "Method":
    """Build the named method around `net`; its config checks the settings."""
    row = method_row(name)
    return row.build(net, problem, row.config(**settings))


def __getattr__(name: str) -> Any:
    if name in ("Method", "MethodConfig"):
        from strongreplay.methods import base

        return getattr(base, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
