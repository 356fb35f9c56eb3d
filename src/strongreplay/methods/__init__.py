"""METHODS: every method by name; a new method is one file and one row. Its file is loaded when asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import cast

from torch import nn

from strongreplay.errors import ConfigError, unknown
from strongreplay.methods.base import Method, MethodConfig
from strongreplay.protocol import Problem

ALL_SCENARIOS = ("class-il", "task-il", "domain-il")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """How a method is built and set, and what a list shows of it."""

    code: str  # file in this folder and class; its settings are the class of that name with Config
    label: str  # as the paper's tables print it
    about: str
    paper: str
    keeps: str = "nothing"
    needs: str = "nothing"
    scenarios: tuple[str, ...] = ALL_SCENARIOS
    refusal: str = ""  # why a scenario is missing above
    on_union: bool = False  # trains once, on all tasks together
    net: str | None = None  # the net it is made for, where that is not the stream's
    grows: bool = False  # goes on when the head gets more outputs
    cost: float = 1.0  # about so many plain training steps is one of its own

    @property
    def build(self) -> Callable[..., Method]:
        return cast(Callable[..., Method], resolve_name(f"{__name__}.{self.code}"))

    @property
    def config(self) -> type[MethodConfig]:
        return cast(type[MethodConfig], resolve_name(f"{__name__}.{self.code}Config"))

    @property
    def has_memory(self) -> bool:
        return "memory_size" in self.config.model_fields


METHODS: dict[str, MethodRow] = {
    "sgd": MethodRow("sgd:SGD", "SGD", "fine-tune on each task in turn: the lower bound", "-", grows=True),
    "joint": MethodRow(
        "sgd:SGD",
        "Joint",
        "train on all tasks at once: the upper bound",
        "-",
        needs="all data",
        on_union=True,
    ),
    "oewc": MethodRow(
        "oewc:OEWC",
        "oEWC",
        "hold weights by their Fisher information",
        "Schwarz et al. 2018",
        keeps="anchor and importance of weights",
        needs="boundaries",
        cost=1.3,
    ),
    "si": MethodRow(
        "si:SI",
        "SI",
        "hold weights by their share in lowering the loss",
        "Zenke et al. 2017",
        keeps="anchor and importance of weights",
        needs="boundaries",
        cost=1.4,
    ),
    "lwf": MethodRow(
        "lwf:LwF",
        "LwF",
        "keep the old classes' answers to new images",
        "Li and Hoiem 2016",
        keeps="logits of the current task",
        needs="boundaries, classes of each task",
        scenarios=("class-il", "task-il"),
        refusal="needs disjoint classes per task",
        cost=1.4,
    ),
    "er": MethodRow(
        "er:ER",
        "ER",
        "replay remembered samples",
        "Riemer et al. 2019",
        keeps="memory",
        grows=True,
        cost=2,
    ),
    "gem": MethodRow(
        "gem:GEM",
        "GEM",
        "correct the gradient against every past task's",
        "Lopez-Paz and Ranzato 2017",
        keeps="memory by task",
        needs="boundaries, number of tasks",
        cost=6,
    ),
    "agem": MethodRow(
        "agem:AGEM",
        "A-GEM",
        "correct the gradient against that of a memory batch",
        "Chaudhry et al. 2019",
        keeps="memory",
        needs="boundaries, number of tasks",
        cost=2.2,
    ),
    "icarl": MethodRow(
        "icarl:ICaRL",
        "iCaRL",
        "distil, keep herded exemplars, answer by their nearest mean",
        "Rebuffi et al. 2017",
        keeps="exemplars by class, old net",
        needs="boundaries, classes of each task",
        scenarios=("class-il", "task-il"),
        refusal="needs disjoint classes per task",
        cost=2,
    ),
    "fdr": MethodRow(
        "fdr:FDR",
        "FDR",
        "match the probabilities given at the end of each task",
        "Benjamin et al. 2019",
        keeps="memory by task with logits",
        needs="boundaries",
        cost=2.5,
    ),
    "gss": MethodRow(
        "gss:GSS",
        "GSS",
        "replay samples chosen for diverse gradients",
        "Aljundi et al. 2019",
        keeps="memory with scores",
        cost=6,
    ),
    "hal": MethodRow(
        "hal:HAL",
        "HAL",
        "replay, and hold the answers to learnt anchors",
        "Chaudhry et al. 2021",
        keeps="memory, anchors by class",
        needs="boundaries, classes of each task",
        cost=3.5,
    ),
    "ert": MethodRow(
        "ert:ERT",
        "ERT",
        "replay with five tricks",
        "Buzzega et al. 2020",
        keeps="memory with losses",
        needs="boundaries, classes of each task",
        scenarios=("class-il", "task-il"),
        refusal="needs disjoint classes per task",
        cost=2.2,
    ),
    "der": MethodRow(
        "der:DER",
        "DER",
        "match stored logits",
        "Buzzega et al. 2020",
        keeps="memory with logits",
        grows=True,
        cost=2,
    ),
    "derpp": MethodRow(
        "derpp:DERPP",
        "DER++",
        "match stored logits and labels",
        "Buzzega et al. 2020",
        keeps="memory with logits",
        grows=True,
        cost=3,
    ),
    "rm": MethodRow(
        "rm:RM",
        "RM",
        "replay samples that span the range of uncertainty, strongly augmented",
        "Bang et al. 2021",
        keeps="memory by class",
        needs="boundaries, classes of each task",
        scenarios=("class-il", "task-il"),
        refusal="is published for disjoint classes per task only",
        cost=2,
    ),
    "clser": MethodRow(
        "clser:CLSER",
        "CLS-ER",
        "replay, and stay near the surer of two averaged nets",
        "Arani et al. 2022",
        keeps="memory, two averaged nets",
        grows=True,
        cost=4,
    ),
    "tamil": MethodRow(
        "tamil:TAMiL",
        "TAMiL",
        "gate features by task, stay near an averaged net",
        "Bhat et al. 2023",
        keeps="memory with tasks, gates by task, averaged net",
        needs="boundaries",
        scenarios=("class-il", "task-il"),
        refusal="needs task identity in training, so the SER paper leaves it out of Domain-IL",
        cost=5,
    ),
    "lvt": MethodRow(
        "lvt:LVT",
        "LVT",
        "attention with external keys, two heads, replay of the surest; a reconstruction",
        "Wang et al. 2022",
        keeps="memory with logits, importance of attention",
        needs="boundaries, classes of each task",
        scenarios=("class-il", "task-il"),
        refusal="needs disjoint classes per task",
        net="lvt",
        cost=2,
    ),
    "co2l": MethodRow(
        "co2l:Co2L",
        "Co2L",
        "contrast current classes, keep old relations, then fit a linear head",
        "Cha et al. 2021",
        keeps="memory by class, old net",
        needs="boundaries, classes of each task",
        scenarios=("class-il", "task-il"),
        refusal="needs disjoint classes per task",
        cost=4,
    ),
    "ser": MethodRow(
        "ser:SER",
        "SER",
        "replay, backward and forward consistency",
        "Zhuo et al. 2023",
        keeps="memory with logits, old net",
        needs="boundaries",
        grows=True,
        cost=2.4,
    ),
}


def method_row(name: str) -> MethodRow:
    if name not in METHODS:
        raise unknown("method", name, METHODS, "See: ser list methods")
    return METHODS[name]


def check_scenario(name: str, scenario: str, stream: str) -> None:
    """Refuse a method where it is not defined, and say why."""
    row = method_row(name)
    if scenario not in row.scenarios:
        raise ConfigError(f"{name} {row.refusal}; {stream} is {scenario.title().replace('Il', 'IL')}")


def build_method(name: str, net: nn.Module, problem: Problem, **settings: object) -> Method:
    """The named method around `net`, with settings checked by its config."""
    row = method_row(name)
    return row.build(net, problem, row.config(**settings))


__all__ = ["METHODS", "Method", "MethodConfig", "MethodRow", "build_method", "check_scenario", "method_row"]
