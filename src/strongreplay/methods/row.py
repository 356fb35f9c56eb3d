"""MethodRow: what is known about a method without loading torch, and how one is made from a user's class."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

if TYPE_CHECKING:
    from strongreplay.methods.base import Method, MethodConfig

ALL_SCENARIOS = ("class-il", "task-il", "domain-il")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """How a method is built, what is said about it, and what it looks like in pictures."""

    name: str  # as typed
    label: str  # as papers print it
    code: str | type  # the class, or its import path; one that begins with a dot is in this folder
    about: str = ""
    family: str = "user"
    paper: str = "-"
    keeps: str = "nothing"
    needs: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ALL_SCENARIOS
    refusal: str = "is not defined there"  # why a scenario is missing above
    on_union: bool = False  # trains once, on all tasks together
    net: str | None = None  # the net it is made for, where that is not the stream's
    grows: bool = False  # goes on when the head gets more outputs
    cost: float = 1.0  # about so many plain training steps is one of its own
    passes: str = ""  # forward and backward passes of a step, for the docs
    look: int | None = None  # its number in the series of colours, markers and dashes
    source_hash: str | None = None  # of code outside the package

    @property
    def method_class(self) -> "type[Method]":
        if isinstance(self.code, type):
            return cast("type[Method]", self.code)
        path = f"{__package__}{self.code}" if self.code.startswith(".") else self.code
        return cast("type[Method]", resolve_name(path))

    @property
    def build(self) -> "Callable[..., Method]":
        """Makes the method from a net, a problem and settings; a class without settings is not given any."""
        method = cast(Any, self.method_class)
        takes_settings = len(inspect.signature(method).parameters) > 2
        return method if takes_settings else lambda net, problem, settings=None: method(net, problem)

    @property
    def config(self) -> "type[MethodConfig]":
        return settings_class(self.method_class)

    @property
    def has_memory(self) -> bool:
        return "memory_size" in self.config.model_fields

    @property
    def needs_boundaries(self) -> bool:
        """Whether it must know where a task ends; where not, it may learn a stream without boundaries."""
        return "boundaries" in self.needs

    @property
    def needs_disjoint_classes(self) -> bool:
        """Whether no class may be in two tasks, as classes are in a blurry stream."""
        return "classes of each task" in self.needs


def row_of_class(name: str, method: type, source_hash: str | None) -> MethodRow:
    """The row of a class outside the package: attributes named like the fields of a row, or the defaults."""
    keys = [field.name for field in fields(MethodRow) if field.name not in ("name", "code", "source_hash")]
    told = {"label": method.__name__, "about": (inspect.getdoc(method) or "").split("\n")[0]}
    told |= {key: getattr(method, key) for key in keys if hasattr(method, key)}
    return MethodRow(name, code=method, source_hash=source_hash, **cast(Any, told))


def settings_class(method: type) -> "type[MethodConfig]":
    """The class of a method's settings.

    It is `Config` inside the method's class, or the class of the same file with the method's name and
    `Config` behind it, or what the third argument of the constructor is annotated with; else there are none.
    """
    from strongreplay.methods.base import MethodConfig

    named = getattr(sys.modules[method.__module__], f"{method.__name__}Config", None)
    for found in (getattr(method, "Config", None), named, *annotations_of_third(method)):
        if isinstance(found, type) and issubclass(found, MethodConfig):
            return found
    return MethodConfig


def annotations_of_third(method: Any) -> tuple[Any, ...]:
    """`X` and every part of `X | None`, where X stands at the third argument of the constructor."""
    names = list(inspect.signature(method).parameters)
    try:
        found = get_type_hints(method.__init__).get(names[2]) if len(names) > 2 else None
    except NameError:  # an annotation that cannot be looked up, such as one for type checkers alone
        return ()
    return (found, *get_args(found))
