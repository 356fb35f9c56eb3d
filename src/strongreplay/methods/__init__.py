"""METHODS: every method by name; a new method is one file and one row."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from strongreplay.errors import ConfigError, unknown
from strongreplay.methods.base import Method, MethodConfig, ReplayConfig
from strongreplay.methods.der import DER, DERConfig
from strongreplay.methods.derpp import DERPP, DERPPConfig
from strongreplay.methods.er import ER, ERConfig
from strongreplay.methods.ser import SER, SERConfig
from strongreplay.methods.sgd import SGD, SGDConfig
from strongreplay.types import Problem

ALL_SETTINGS = ("class-il", "task-il", "domain-il")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """How a method is built and set, and what a list shows of it."""

    build: Callable[..., Method]
    config: type[MethodConfig]
    label: str  # as the paper's tables print it
    about: str
    paper: str
    keeps: str = "nothing"
    needs: str = "nothing"
    settings: tuple[str, ...] = ALL_SETTINGS
    refusal: str = ""  # why a setting is missing above
    on_union: bool = False  # trains once, on all tasks together

    @property
    def has_memory(self) -> bool:
        return "memory_size" in self.config.model_fields


METHODS: dict[str, MethodRow] = {
    "sgd": MethodRow(SGD, SGDConfig, "SGD", "fine-tune on each task in turn: the lower bound", "-"),
    "joint": MethodRow(
        SGD,
        SGDConfig,
        "Joint",
        "train on all tasks at once: the upper bound",
        "-",
        needs="all data",
        on_union=True,
    ),
    "er": MethodRow(ER, ERConfig, "ER", "replay remembered samples", "Riemer et al. 2019", keeps="memory"),
    "der": MethodRow(
        DER, DERConfig, "DER", "match stored logits", "Buzzega et al. 2020", keeps="memory with logits"
    ),
    "derpp": MethodRow(
        DERPP,
        DERPPConfig,
        "DER++",
        "match stored logits and labels",
        "Buzzega et al. 2020",
        keeps="memory with logits",
    ),
    "ser": MethodRow(
        SER,
        SERConfig,
        "SER",
        "replay, backward and forward consistency",
        "Zhuo et al. 2023",
        keeps="memory with logits, old net",
        needs="boundaries",
    ),
}


def method_row(name: str) -> MethodRow:
    if name not in METHODS:
        raise unknown("method", name, METHODS, "See: ser list methods")
    return METHODS[name]


def check_setting(name: str, setting: str, stream: str) -> None:
    """Refuse a method where it is not defined, and say why."""
    row = method_row(name)
    if setting not in row.settings:
        raise ConfigError(f"{name} {row.refusal}; {stream} is {setting.title().replace('Il', 'IL')}")


def build_method(name: str, net: nn.Module, problem: Problem, **settings: object) -> Method:
    """The named method around `net`, with settings checked by its config."""
    row = method_row(name)
    return row.build(net, problem, row.config(**settings))


__all__ = [
    "DER", "DERPP", "ER", "METHODS", "SER", "SGD",
    "DERConfig", "DERPPConfig", "ERConfig", "Method", "MethodConfig", "MethodRow", "ReplayConfig",
    "SERConfig", "SGDConfig", "build_method", "check_setting", "method_row",
]  # fmt: skip
