"""MethodRow: what is known about a method without loading torch; also made from a user's class."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

if TYPE_CHECKING:
    from strongreplay.methods.base import Method, MethodConfig

ALL_SCENARIOS = ("class-il", "task-il", "domain-il")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """How a method is built, what lists and tables say about it, and its style in figures."""

    name: str  # as typed on the command line
    label: str  # as papers print it
    code: str | type  # the class or its import path; a path that begins with a dot is relative to this folder
    about: str = ""
    family: str = "user"
    paper: str = "-"
    keeps: str = "nothing"
    needs: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ALL_SCENARIOS
    refusal: str = "is not defined there"  # why a scenario is missing from `scenarios`
    on_union: bool = False  # trains once, on all tasks together
    net: str | None = None  # the net it needs, if that is not the stream's default
    grows: bool = False  # supports a head that gets more outputs during training
    own_steps: bool = False  # changes weights without the optimiser, which guards against overflow in fp16
    cost: float = 1.0  # time of a step relative to a plain SGD step, roughly
    passes: str = ""  # forward and backward passes of a step, for the docs
    style: int | None = None  # number of its colour, marker and dash in figures
    source_hash: str | None = None  # hash of the source, for code outside the package

    def texts(self, about: str, keeps: str, passes: str) -> "MethodRow":
        """The row with its texts for lists and docs."""
        return replace(self, about=about, keeps=keeps, passes=passes)

    @property
    def method_class(self) -> "type[Method]":
        if isinstance(self.code, type):
            return cast("type[Method]", self.code)
        path = f"{__package__}{self.code}" if self.code.startswith(".") else self.code
        return cast("type[Method]", resolve_name(path))

    @property
    def build(self) -> "Callable[..., Method]":
        """Makes the method from a net, a problem and settings; settings are dropped if its class has none."""
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
        """Whether it must know when a task ends; if not, it can learn streams without task boundaries."""
        return "boundaries" in self.needs

    @property
    def needs_auxiliary(self) -> bool:
        """Whether it learns from unlabelled images beside the stream's."""
        return "auxiliary images" in self.needs

    @property
    def needs_weights(self) -> bool:
        """Whether its net stays as it is, so that it is of use with pretrained weights only."""
        return "pretrained weights" in self.needs

    @property
    def needs_disjoint_classes(self) -> bool:
        """Whether each class must belong to one task only, which rules out blurry streams."""
        return "classes of each task" in self.needs


def row_of_class(name: str, method: type, source_hash: str | None) -> MethodRow:
    """The row of a user's class: class attributes named like fields of MethodRow set them."""
    keys = [field.name for field in fields(MethodRow) if field.name not in ("name", "code", "source_hash")]
    values = {"label": method.__name__, "about": (inspect.getdoc(method) or "").split("\n")[0]}
    values |= {key: getattr(method, key) for key in keys if hasattr(method, key)}
    return MethodRow(name, code=method, source_hash=source_hash, **cast(Any, values))


def settings_class(method: type) -> "type[MethodConfig]":
    """The class of a method's settings.

    It is, in this order: `Config` inside the method's class; the class `<Method>Config` of the same file; the
    annotation of the constructor's third argument. Otherwise the method has no settings.
    """
    from strongreplay.methods.base import MethodConfig

    named = getattr(sys.modules[method.__module__], f"{method.__name__}Config", None)
    for found in (getattr(method, "Config", None), named, *annotations_of_third(method)):
        if isinstance(found, type) and issubclass(found, MethodConfig):
            return found
    return MethodConfig


def annotations_of_third(method: Any) -> tuple[Any, ...]:
    """The annotation of the constructor's third argument and, for a union, each of its members."""
    names = list(inspect.signature(method).parameters)
    try:
        found = get_type_hints(method.__init__).get(names[2]) if len(names) > 2 else None
    except NameError:  # an annotation that cannot be resolved, e.g. one imported under TYPE_CHECKING
        return ()
    return (found, *get_args(found))
