"""RunConfig: everything that a run depends on, validated once, with all errors reported together.

Values come from the defaults of each section, then from the recipe of the stream, method and memory size,
then from the user's `key=value` settings; later ones override earlier ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from strongreplay.data.auxiliary import check_auxiliary
from strongreplay.data.datasets import OnProgress, default_folder
from strongreplay.data.streams import StreamInfo, StreamOptions, describe_stream
from strongreplay.data.user_splits import data_hash, is_user_data
from strongreplay.errors import ConfigError, DataError
from strongreplay.methods import MethodConfig, MethodRow, check_scenario, method_row
from strongreplay.nets import net_row
from strongreplay.nets.choice import choose_net
from strongreplay.nets.vit_weights import hash_of_weights
from strongreplay.runs.recipes import PUBLISHED, find_recipe
from strongreplay.storage.records import flatten
from strongreplay.training.settings import (
    NetConfig,
    Section,
    TrainConfig,
    build_sections,
    net_faults,
    net_section,
    parse_settings,
)

__all__ = [
    "DataConfig",
    "EvalConfig",
    "NetConfig",
    "RunConfig",
    "Section",
    "TrainConfig",
    "build_sections",
    "config_of",
    "parse_settings",
    "prepare_stream",
    "resolve",
]


class EvalConfig(Section):
    batch_size: int = Field(1000, ge=1, description="samples per forward pass")
    candidates: Literal["seen", "all"] = Field(
        "seen", description="Class-IL predicts among seen or all classes"
    )


class DataConfig(Section):
    """Options of a stream. All but the first two are None by default, which changes nothing."""

    added = frozenset(
        {"num_tasks", "order", "first", "step", "online", "blurry", "boundaries", "test", "side", "hash"}
        | {"auxiliary", "mean", "std"}
    )
    tasks: int | None = Field(None, ge=1, description="learn only the first tasks, this many; none: all")
    validation: float = Field(
        0.0, ge=0, lt=1, description="test on this part of the training data, for tuning"
    )
    num_tasks: int | None = Field(None, ge=1, description="number of tasks; none: as published")
    order: tuple[int | str, ...] | None = Field(
        None, min_length=1, description="class order: shuffled (by the seed) or a list of all; none: natural"
    )
    first: int | None = Field(None, ge=1, description="classes of the first task; needs data.step")
    step: int | None = Field(None, ge=1, description="classes of every other task; the last takes the rest")
    online: bool | None = Field(None, description="one pass over the data in batches of 10")
    blurry: float | None = Field(
        None, gt=0, lt=1, description="this share of each class's samples is in other tasks"
    )
    boundaries: bool | None = Field(
        None, description="false: tasks overlap in time; samples are read once, in order"
    )
    test: float | None = Field(None, gt=0, lt=1, description="own data: share held out for testing")
    side: int | None = Field(None, ge=1, description="own images: side in pixels; none: from the images")
    mean: tuple[float, ...] | None = Field(
        None, description="mean of each channel in [0, 1]; none: of the dataset; needs data.std"
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, description="deviation of each channel; 0.5 for both, as many checkpoints need: [-1, 1]"
    )
    hash: str | None = Field(None, description="own data or code: its hash, set automatically")
    auxiliary: str | None = Field(
        None,
        description="unlabelled images for methods that need them: a dataset, or one's own (folder:PHOTOS)",
    )

    @field_validator("order", mode="before")
    @classmethod
    def numbers(cls, order: Any) -> Any:
        """Texts from the command line: digits are class numbers, other texts are class names."""
        if not isinstance(order, list | tuple):
            return order
        return [int(entry) if isinstance(entry, str) and entry.isdecimal() else entry for entry in order]

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.first and not self.step:
            raise ValueError("data.first needs data.step, the classes of every other task")
        if self.step and self.num_tasks:
            raise ValueError("data.step and data.num_tasks exclude each other; set one of them")
        if (self.mean is None) != (self.std is None):
            raise ValueError("data.mean and data.std belong together; give both or none")
        return self

    @property
    def is_read_once(self) -> bool:
        return bool(self.online) or self.boundaries is False

    @property
    def options(self) -> StreamOptions:
        return StreamOptions(**self.model_dump(exclude={"online", "hash", "auxiliary"}))


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
    source: str  # the recipe
    code: dict[str, str] = field(default_factory=dict)  # versions of the code outside the package

    @property
    def row(self) -> MethodRow:
        return method_row(self.method_name, self.code.get("method"))

    def to_dict(self) -> dict[str, Any]:
        """Exactly the values that the results depend on."""
        outside = {"code": self.code} if self.code else {}
        return outside | {
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
    code: Mapping[str, str] | None = None,
) -> RunConfig:
    """The full configuration of a run, or one ConfigError that lists all its errors.

    With `code`, methods, nets and streams from outside the package must have these versions.
    """
    code = code or {}
    info, row = look_up(stream, method, code, settings or {})
    check_scenario(row, info.scenario, stream)
    if memory_size is None and row.has_memory:
        memory_size = (settings or {}).get("method.memory_size")
    try:
        published_size = None if memory_size is None else int(memory_size)
    except (TypeError, ValueError, OverflowError):
        published_size = None  # reported below, with all other errors
    recipe = find_recipe(stream, method, published_size, recipe_name)
    values = {**stream_values(info, row.net), **recipe.settings}
    if memory_size is not None and row.has_memory:
        values["method.memory_size"] = memory_size
    values = {**with_one_pass(values, settings or {}), **(settings or {})}
    net_config = net_section(values["net.name"], code.get("net"))
    values = without_other_nets(values, settings or {}, net_config)
    sections: dict[str, type[BaseModel]] = {
        "method": row.config, "net": net_config, "train": TrainConfig, "eval": EvalConfig, "data": DataConfig
    }  # fmt: skip
    built, faults = build_sections(sections, values)
    if isinstance(net := built.get("net"), NetConfig):
        faults += net_faults(net)
        built["net"], more = with_weights_hash(net)
        faults += more
    faults += stream_faults(stream, row, info, built)
    if row.own_steps and isinstance(train := built.get("train"), TrainConfig) and train.precision == "fp16":
        faults.append(
            f"{row.name} changes weights without the optimiser, so with train.precision=fp16 an overflow "
            "would enter them; take bf16 or fp32"
        )
    if seed < 0:
        faults.append(f"seed must be >= 0, got {seed}")
    if faults:
        raise ConfigError("\n".join(faults))
    versions = {"method": row.source_hash, "net": net_row(built["net"].name, code.get("net")).source_hash}
    outside = {kind: version for kind, version in versions.items() if version is not None}
    return RunConfig(stream, method, seed, source=recipe.source, code=outside, **built)


def look_up(
    stream: str, method: str, code: Mapping[str, str], settings: Mapping[str, Any]
) -> tuple[StreamInfo, MethodRow]:
    """The description of a stream and the row of a method, or one ConfigError about both.

    A user's own data are read here if they have changed.
    """
    faults, info, row = [], None, None
    try:
        info = describe_stream(stream, reading_options(settings))
    except ConfigError as error:
        faults.append(str(error))
    try:
        row = method_row(method, code.get("method"))
    except ConfigError as error:
        faults.append(str(error))
    if info is None or row is None:
        raise ConfigError("\n".join(faults))
    return info, row


def reading_options(settings: Mapping[str, Any]) -> StreamOptions:
    """The settings for reading a user's own data; invalid ones are reported later, with all others."""
    try:
        return DataConfig(**{key: settings.get(f"data.{key}") for key in ("side", "test")}).options
    except ValidationError:
        return StreamOptions()


def prepare_stream(stream: str, settings: Mapping[str, Any], progress: OnProgress) -> None:
    """Read a user's own data into the cache, which may take a while; other streams need no preparation."""
    if is_user_data(stream):
        data_hash(stream, default_folder(), reading_options(settings).side, progress)


def stream_values(info: StreamInfo, net: str | None) -> dict[str, Any]:
    """Settings that follow from a stream: its net, published or chosen by shape, and the data's hash."""
    if net or info.net:
        values = {"net.name": net or info.net}
    else:
        values = {f"net.{key}": value for key, value in choose_net(info.input_shape, None).items()}
    return values | ({"data.hash": info.hash} if info.hash else {})


def without_other_nets(
    values: dict[str, Any], settings: Mapping[str, Any], section: type[NetConfig]
) -> dict[str, Any]:
    """Without the recipe's settings of its own net, if a user named a net that does not have them."""
    if "net.name" not in settings:
        return values
    known = {f"net.{key}" for key in section.model_fields} | set(settings)
    return {key: value for key, value in values.items() if key in known or not key.startswith("net.")}


def with_weights_hash(net: NetConfig) -> tuple[NetConfig, list[str]]:
    """The net with the SHA-256 of its file of weights, and faults: two files are two configurations."""
    if "weights_hash" not in type(net).model_fields or (file := net.options.get("weights")) is None:
        return net, []
    try:
        found = hash_of_weights(file)
    except (ConfigError, DataError) as error:
        return net, [str(error)]
    if (held := net.options.get("weights_hash")) not in (None, found):
        return net, [
            f"net.weights={file}: not the file this run was made with (SHA-256 {held[:16]}..., now "
            f"{found[:16]}...); put it back, or start a new run"
        ]
    return net.model_copy(update={"weights_hash": found}), []


# Epochs of a recipe do not apply if the data are read once.
PASSES: tuple[str, ...] = ("train.epochs", "train.first_epochs", "train.batch_size", "train.milestones")
PASSES += ("train.schedule", "train.warmup", "train.min_lr")
ONE_PASS = {"train.epochs": 1, "train.batch_size": 10}


def with_one_pass(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's values, with one epoch if the settings ask for a single pass."""
    data = {key: settings.get(f"data.{key}") for key in ("online", "boundaries")}
    try:
        if DataConfig(**data).is_read_once:
            return {key: value for key, value in values.items() if key not in PASSES} | ONE_PASS
    except ValidationError:  # reported later, with all other errors
        pass
    return dict(values)


def stream_faults(stream: str, row: MethodRow, info: StreamInfo, built: Mapping[str, Any]) -> list[str]:
    """Contradictions between the options of a stream, the training and the needs of the method."""
    data, train = built.get("data"), built.get("train")
    if not isinstance(data, DataConfig):
        return []
    faults = []
    if data.hash != info.hash:
        raise ConfigError(
            f"the data of {stream} have changed since this run was made ({data.hash}, now {info.hash}); "
            "put them back, or start a new run"
        )
    faults += [] if is_user_data(stream) else reading_faults(stream, data)
    try:
        describe_stream(stream, data.options)
    except ConfigError as error:
        faults.append(str(error))
    if data.is_read_once and isinstance(train, TrainConfig):
        faults += pass_faults(data, train)
    if data.blurry and row.needs_disjoint_classes:
        faults.append(
            f"{row.name} needs tasks with classes of their own; with data.blurry they share classes"
        )
    if data.boundaries is False and row.needs_boundaries:
        faults.append(f"{row.name} needs to know where a task ends; data.boundaries=false leaves that out")
    return faults + auxiliary_faults(row, data)


def auxiliary_faults(row: MethodRow, data: DataConfig) -> list[str]:
    """Auxiliary images are given to a method that needs them, and to no other."""
    if data.auxiliary is None:
        remedy = "give a dataset or your own with --set data.auxiliary=fashion-mnist or folder:PHOTOS"
        fault = f"{row.name} needs unlabelled images beside the stream; {remedy}"
        return [fault] if row.needs_auxiliary else []
    if not row.needs_auxiliary and row.source_hash is None:
        return [f"data.auxiliary is of no use to {row.name}; leave it out"]
    try:
        check_auxiliary(data.auxiliary)
    except ConfigError as error:
        return [str(error)]
    return []


def reading_faults(stream: str, data: DataConfig) -> list[str]:
    return [
        f"data.{key} is for one's own data (folder:, csv:, ...), not for {stream}; leave it out"
        for key in ("side", "test")
        if getattr(data, key) is not None
    ]


def pass_faults(data: DataConfig, train: TrainConfig) -> list[str]:
    asked = "data.online=true" if data.online else "data.boundaries=false"
    return [
        f"{asked} reads the data once, got train.{key}={epochs}; leave train.{key} out"
        for key, epochs in (("epochs", train.epochs), ("first_epochs", train.first_epochs))
        if epochs not in (None, 1)
    ]


def config_of(held: Mapping[str, Any], source: str) -> RunConfig:
    """The inverse of `RunConfig.to_dict`."""
    try:
        settings = flatten({name: dict(held[name]) for name in ("method", "net", "train", "eval", "data")})
        method = settings.pop("method.name")
        seed, code = int(held["seed"]), held.get("code")
        config = resolve(held["stream"], method, seed=seed, settings=settings, code=code)
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(f"not the configuration of a run ({type(error).__name__}: {error})") from None
    return replace(config, source=source)
