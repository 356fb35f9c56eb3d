"""RunConfig: everything that decides a run, validated once, all faults told together.

Values come, later ones winning, from the defaults of each section, the recipe of the stream, method and
memory size, and the user's own `key=value` settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from strongreplay.data.streams import STREAMS, StreamOptions, describe_stream
from strongreplay.errors import ConfigError, unknown
from strongreplay.methods import METHODS, MethodConfig, check_scenario
from strongreplay.nets import NETS
from strongreplay.runs.recipes import PUBLISHED, find_recipe
from strongreplay.storage.records import flatten
from strongreplay.training.rates import Rate, cosine, restarts, stepped


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrainConfig(Section):
    """How each task is trained: plain SGD, at a constant rate unless something here says otherwise."""

    lr: float = Field(0.1, gt=0, description="learning rate")
    epochs: int = Field(1, ge=1, description="passes over each task")
    batch_size: int = Field(32, ge=1, description="samples a step")
    milestones: tuple[int, ...] = Field(
        (), description="epochs after which the rate decays; restarts every task"
    )
    decay: float = Field(0.1, gt=0, le=1, description="factor of each decay")
    momentum: float = Field(0.0, ge=0, lt=1, description="of SGD; starts anew every task")
    weight_decay: float = Field(0.0, ge=0, description="of SGD")
    # What follows is none by default, which keeps the names of records as they were.
    nesterov: bool | None = Field(None, description="look ahead along the momentum")
    keep_momentum: bool | None = Field(None, description="carry the momentum over from task to task")
    first_epochs: int | None = Field(None, ge=1, description="passes over the first task; none: as over all")
    drop_last: bool | None = Field(None, description="leave out a short batch at the end of an epoch")
    schedule: Literal["cosine", "restarts"] | None = Field(
        None, description="cosine: one wave a task; restarts: waves of 1, 2, 4, ... epochs; none: milestones"
    )
    min_lr: float | None = Field(
        None, ge=0, description="where a wave ends; none: lr / 1000 (cosine), lr / 100 (restarts)"
    )
    warmup: int | None = Field(None, ge=0, description="epochs in which the rate of cosine rises from 0.01")

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("train.nesterov needs train.momentum > 0")
        if self.schedule and self.milestones:
            raise ValueError("train.schedule and train.milestones exclude each other; set one of them")
        return self

    def epochs_of(self, index: int) -> int:
        return self.first_epochs if self.first_epochs and index == 0 else self.epochs

    def rate_of(self, index: int) -> Rate | None:
        """The rate's course over a task; none where it is constant."""
        epochs, floor = self.epochs_of(index), self.min_lr
        if self.schedule == "cosine":
            floor = self.lr * 1e-3 if floor is None else floor
            return cosine(self.lr, floor, epochs, self.warmup or 0, self.epochs)
        if self.schedule == "restarts":
            return restarts(self.lr, self.lr / 100 if floor is None else floor)
        return stepped(self.lr, self.milestones, self.decay) if self.milestones else None


class NetConfig(Section):
    name: str
    width: int | None = Field(None, ge=1, description="hidden units or first channels; none: as published")
    bias: Literal["zero", "default"] | None = Field(None, description="mlp only: how biases start")

    @property
    def options(self) -> dict[str, Any]:
        return {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}


class EvalConfig(Section):
    batch_size: int = Field(1000, ge=1, description="samples a forward pass")
    candidates: Literal["seen", "all"] = Field(
        "seen", description="Class-IL answers among seen or all classes"
    )


class DataConfig(Section):
    """How a stream is arranged. Everything but the first two is none by default and then changes nothing."""

    tasks: int | None = Field(None, ge=1, description="learn only the first so many tasks; none: all")
    validation: float = Field(
        0.0, ge=0, lt=1, description="judge on this part of the training data, for tuning"
    )
    num_tasks: int | None = Field(None, ge=1, description="divide into so many tasks; none: as published")
    order: tuple[int | str, ...] | None = Field(
        None, min_length=1, description="of the classes: shuffled (by the seed) or all of them; none: natural"
    )
    first: int | None = Field(None, ge=1, description="classes of the first task; needs data.step")
    step: int | None = Field(None, ge=1, description="classes of every other task; the last takes the rest")
    online: bool | None = Field(None, description="one pass over the data in batches of 10")
    blurry: float | None = Field(
        None, gt=0, lt=1, description="this share of each class's samples is in other tasks"
    )
    boundaries: bool | None = Field(
        None, description="false: tasks flow into each other and are read once, in order"
    )
    test: float | None = Field(None, gt=0, lt=1, description="own data: share held out for the test")
    side: int | None = Field(None, ge=1, description="own images: pixels of a side; none: by the images")

    @field_validator("order", mode="before")
    @classmethod
    def numbers(cls, order: Any) -> Any:
        """Digits typed at the command line are class numbers, other texts class names."""
        if not isinstance(order, list | tuple):
            return order
        return [int(entry) if isinstance(entry, str) and entry.isdecimal() else entry for entry in order]

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.first and not self.step:
            raise ValueError("data.first needs data.step, the classes of every other task")
        if self.step and self.num_tasks:
            raise ValueError("data.step and data.num_tasks exclude each other; set one of them")
        return self

    @property
    def is_read_once(self) -> bool:
        return bool(self.online) or self.boundaries is False

    @property
    def options(self) -> StreamOptions:
        return StreamOptions(**self.model_dump(exclude={"online"}))


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run: a stream, a method with its settings, a net, a schedule and a seed."""

    stream: str
    method_name: str
    seed: int
    method: MethodConfig
    net: NetConfig
    train: TrainConfig
    eval: EvalConfig
    data: DataConfig
    source: str  # of the recipe

    def to_dict(self) -> dict[str, Any]:
        """What decides the results, and nothing else."""
        return {
            "stream": self.stream,
            "seed": self.seed,
            "method": {"name": self.method_name, **self.method.model_dump(mode="json")},
            **{
                name: getattr(self, name).model_dump(mode="json") for name in ("net", "train", "eval", "data")
            },
        }


def resolve(
    stream: str,
    method: str,
    memory_size: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    recipe_name: str = PUBLISHED,
) -> RunConfig:
    """The whole configuration of a run, or one ConfigError that lists everything wrong with it."""
    faults = [
        str(unknown(kind, name, table, f"See: ser list {kind}s"))
        for kind, name, table in (("stream", stream, STREAMS), ("method", method, METHODS))
        if name not in table
    ]
    if faults:
        raise ConfigError("\n".join(faults))
    row = METHODS[method]
    check_scenario(method, STREAMS[stream].scenario, stream)
    if memory_size is None and row.has_memory:
        memory_size = (settings or {}).get("method.memory_size")
    try:
        published_size = None if memory_size is None else int(memory_size)
    except (TypeError, ValueError):
        published_size = None  # said below, with all other faults
    recipe = find_recipe(stream, method, published_size, recipe_name)
    values = {"net.name": row.net or STREAMS[stream].net, **recipe.settings}
    if memory_size is not None and row.has_memory:
        values["method.memory_size"] = memory_size
    values = {**with_one_pass(values, settings or {}), **(settings or {})}
    sections: dict[str, type[BaseModel]] = {
        "method": row.config, "net": NetConfig, "train": TrainConfig, "eval": EvalConfig, "data": DataConfig
    }  # fmt: skip
    built, faults = build_sections(sections, values)
    if isinstance(net := built.get("net"), NetConfig):
        faults += net_faults(net)
    faults += stream_faults(stream, method, built)
    if seed < 0:
        faults.append(f"seed must be >= 0, got {seed}")
    if faults:
        raise ConfigError("\n".join(faults))
    return RunConfig(stream, method, seed, source=recipe.source, **built)


# What a recipe says about passes does not hold where the data are read once.
PASSES = ("train.epochs", "train.first_epochs", "train.batch_size", "train.milestones", "train.schedule")
ONE_PASS = {"train.epochs": 1, "train.batch_size": 10}


def with_one_pass(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's values, its passes replaced where the settings ask for one alone."""
    data = {key: settings.get(f"data.{key}") for key in ("online", "boundaries")}
    try:
        if DataConfig(**data).is_read_once:
            return {key: value for key, value in values.items() if key not in PASSES} | ONE_PASS
    except ValidationError:  # said later, with all other faults
        pass
    return dict(values)


def stream_faults(stream: str, method: str, built: Mapping[str, Any]) -> list[str]:
    """Where the arrangement of a stream contradicts itself, the training or what a method needs."""
    data, train = built.get("data"), built.get("train")
    if not isinstance(data, DataConfig):
        return []
    faults = []
    try:
        describe_stream(stream, data.options)
    except ConfigError as error:
        faults.append(str(error))
    if data.is_read_once and isinstance(train, TrainConfig):
        asked = "data.online=true" if data.online else "data.boundaries=false"
        faults += [
            f"{asked} reads the data once, got train.{key}={epochs}; leave train.{key} out"
            for key, epochs in (("epochs", train.epochs), ("first_epochs", train.first_epochs))
            if epochs not in (None, 1)
        ]
    needs = METHODS[method].needs
    if data.blurry and "classes of each task" in needs:
        faults.append(f"{method} needs tasks with classes of their own; with data.blurry they share classes")
    if data.boundaries is False and "boundaries" in needs:
        faults.append(f"{method} needs to know where a task ends; data.boundaries=false leaves that out")
    return faults


def config_of(held: Mapping[str, Any], source: str) -> RunConfig:
    """The inverse of `RunConfig.to_dict`."""
    try:
        settings = flatten({name: dict(held[name]) for name in ("method", "net", "train", "eval", "data")})
        method = settings.pop("method.name")
        config = resolve(held["stream"], method, seed=int(held["seed"]), settings=settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"not the configuration of a run ({type(error).__name__}: {error})") from None
    return replace(config, source=source)


def build_sections(
    sections: Mapping[str, type[BaseModel]], values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Each section as its own model, and a line for everything that does not fit."""
    known = [f"{name}.{key}" for name, model in sections.items() for key in model.model_fields]
    grouped: dict[str, dict[str, Any]] = {name: {} for name in sections}
    faults = []
    for key, value in values.items():
        name, _, rest = key.partition(".")
        if key not in known:
            nearest = get_close_matches(key, known, n=1, cutoff=0.5)
            options = ", ".join(k for k in known if k.startswith(f"{name}.")) or ", ".join(known)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {options}"
            faults.append(f"unknown setting '{key}'; {hint}")
        else:
            grouped[name][rest] = from_text(value, sections[name].model_fields[rest].annotation)
    built: dict[str, Any] = {}
    for name, model in sections.items():
        try:
            built[name] = model(**grouped[name])
        except ValidationError as error:
            faults += [describe(name, fault) for fault in error.errors()]
    return built, faults


def from_text(value: Any, annotation: Any) -> Any:
    """A value typed at the command line: commas make lists, 'none' is none; the rest is left to the model."""
    if not isinstance(value, str):
        return value
    kinds = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
    if value.lower() == "none" and type(None) in kinds:
        return None
    if any(get_origin(kind) is tuple for kind in kinds):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


RULES = {
    "greater_than_equal": "must be >= {ge}",
    "greater_than": "must be > {gt}",
    "less_than_equal": "must be <= {le}",
    "less_than": "must be < {lt}",
    "literal_error": "must be {expected}",
    "finite_number": "must be a finite number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "too_short": "must not be empty",
}


def describe(section: str, fault: Any) -> str:
    """One of pydantic's findings in the words of this package."""
    if fault["type"] == "value_error":  # of several keys together; the message names them
        return str(fault["ctx"]["error"])
    key = ".".join([section, *(str(part) for part in fault["loc"] if isinstance(part, str))])
    rule = RULES.get(fault["type"], fault["msg"]).format(**fault.get("ctx", {}))
    return f"{key} {rule}, got {fault['input']!r}"


def net_faults(net: NetConfig) -> list[str]:
    if net.name not in NETS:
        return [str(unknown("net", net.name, NETS, "See: ser list nets"))]
    allowed = NETS[net.name].options
    return [
        f"net.{key} is not an option of {net.name}; it has {', '.join(allowed)}"
        for key in net.options
        if key not in allowed
    ]


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`key=value` texts as a mapping; a text of another form is named."""
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise ConfigError(f"--set takes KEY=VALUE, such as train.epochs=5; got {', '.join(map(repr, wrong))}")
    return {key.strip(): value.strip() for key, value in (pair.split("=", 1) for pair in pairs)}
