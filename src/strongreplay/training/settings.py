"""Settings of nets and of training, and how sections of settings are built, with all errors at once."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

from strongreplay.errors import ConfigError
from strongreplay.extensions import installed, is_path
from strongreplay.nets import NETS, net_row
from strongreplay.training.rates import Rate, cosine, restarts, stepped


class Section(BaseModel):
    """A part of a configuration. Unknown keys are refused.

    Settings named in `added` are newer than the first records. They are written only if they are set, so a
    configuration without them is written as before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    added: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def leave_out_added(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            key: value for key, value in write(self).items() if value is not None or key not in self.added
        }


class TrainConfig(Section):
    """How each task is trained; the default is plain SGD at a constant rate."""

    added = frozenset({"optimizer", "betas", "clip_norm", "precision", "compile"})
    lr: float = Field(0.1, gt=0, description="learning rate")
    epochs: int = Field(1, ge=1, description="epochs per task")
    batch_size: int = Field(32, ge=1, description="samples per step")
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="epochs after which the rate decays; restarts every task"
    )
    decay: float = Field(0.1, gt=0, le=1, description="factor of each decay")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD; reset at every task")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of the optimiser")
    # The settings below are None by default: a record's name leaves out None, so old names stay valid.
    optimizer: Literal["sgd", "adam", "adamw"] | None = Field(None, description="none: sgd")
    betas: tuple[float, float] | None = Field(None, description="betas of Adam and AdamW; none: 0.9, 0.999")
    clip_norm: float | None = Field(
        None, gt=0, description="limit of the gradient's norm; larger gradients are scaled down"
    )
    precision: Literal["fp32", "bf16", "fp16"] | None = Field(
        None, description="numbers in which nets compute; weights stay fp32; fp16: CUDA only; none: fp32"
    )
    compile: bool | None = Field(None, description="compile nets with torch.compile; pays off in long runs")
    nesterov: bool | None = Field(None, description="use Nesterov momentum")
    keep_momentum: bool | None = Field(None, description="keep the momentum from task to task")
    first_epochs: int | None = Field(None, ge=1, description="epochs of the first task; none: train.epochs")
    drop_last: bool | None = Field(None, description="leave out a short batch at the end of an epoch")
    schedule: Literal["cosine", "restarts"] | None = Field(
        None,
        description="cosine: a wave per task; restarts: waves of 1, 2, 4, ... epochs; none: milestones",
    )
    min_lr: float | None = Field(
        None, ge=0, description="rate at the end of a wave; none: lr / 1000 (cosine), lr / 100 (restarts)"
    )
    warmup: int | None = Field(None, ge=0, description="epochs of linear warm-up from 0.01, for cosine")

    @field_validator("precision", "compile", mode="after")
    @classmethod
    def leave_out_default(cls, value: str | bool | None) -> str | bool | None:
        """fp32 and false are written as if they were not set: a record's name depends on them."""
        return None if value in ("fp32", False) else value

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("train.nesterov needs train.momentum > 0")
        if self.optimizer in ("adam", "adamw") and self.momentum:
            raise ValueError(
                f"train.momentum is of sgd; with {self.optimizer} set it to 0 and use train.betas"
            )
        if self.betas is not None and self.optimizer in (None, "sgd"):
            raise ValueError("train.betas needs train.optimizer=adam or adamw")
        if self.betas is not None and not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"train.betas must be two numbers >= 0 and < 1, got {self.betas}")
        if self.schedule and self.milestones:
            raise ValueError("train.schedule and train.milestones exclude each other; set one of them")
        return self

    @model_validator(mode="after")
    def check_schedule(self) -> Self:
        if self.warmup and self.schedule != "cosine":
            raise ValueError("train.warmup needs train.schedule=cosine")
        if self.warmup and self.warmup >= self.epochs:
            raise ValueError(
                f"train.warmup must be shorter than train.epochs, got {self.warmup} of {self.epochs} epochs"
            )
        if self.min_lr is not None and not self.schedule:
            raise ValueError("train.min_lr needs train.schedule=cosine or restarts")
        return self

    def epochs_of(self, index: int) -> int:
        return self.first_epochs if self.first_epochs and index == 0 else self.epochs

    def rate_of(self, index: int) -> Rate | None:
        """The learning rate over a task; None if it is constant."""
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
    bias: Literal["zero", "default"] | None = Field(None, description="mlp only: initial biases")
    head: str | None = Field(None, description="own nets only: the name of the last linear layer")
    added: ClassVar[frozenset[str]] = frozenset({"head"})

    @property
    def options(self) -> dict[str, Any]:
        return {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}


def build_sections(
    sections: Mapping[str, type[BaseModel]], values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Each section as its own model, and a line for each error."""
    known = [f"{name}.{key}" for name, model in sections.items() for key in model.model_fields]
    grouped: dict[str, dict[str, Any]] = {name: {} for name in sections}
    faults = []
    for key, value in values.items():
        name, _, rest = key.partition(".")
        if key not in known:
            faults.append(f"unknown setting '{key}'; {suggest(key, known)}")
        else:
            grouped[name][rest] = from_text(value, sections[name].model_fields[rest].annotation)
    built: dict[str, Any] = {}
    for name, model in sections.items():
        try:
            built[name] = model(**grouped[name])
        except ValidationError as error:
            faults += describe_all(name, error)
    return built, faults


def suggest(key: str, known: Sequence[str]) -> str:
    """What the user may have meant by an unknown key."""
    if key in ("seed", "seeds"):
        return "use --seeds"
    section, _, last = key.rpartition(".")
    same = [one for one in known if one.partition(".")[2] == last]
    nearest = same[:1] or get_close_matches(key, known, n=1, cutoff=0.6 if section else 0.7)
    options = ", ".join(one for one in known if one.startswith(f"{section}.")) or ", ".join(known)
    return f"did you mean '{nearest[0]}'?" if nearest else f"known: {options}"


def from_text(value: Any, annotation: Any) -> Any:
    """A value typed at the command line: commas make lists, 'none' is None; the model parses the rest."""
    if not isinstance(value, str):
        return value
    if value.lower() == "none" and type(None) in kinds_of(annotation):
        return None
    if takes_list(annotation):
        inside = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        return [part.strip() for part in inside.split(",") if part.strip()]
    return value


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; anything else is its only member."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def takes_list(annotation: Any) -> bool:
    """Whether one value of the setting is a list."""
    return any((get_origin(kind) or kind) in (tuple, list, set, frozenset) for kind in kinds_of(annotation))


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
    "too_long": "must have at most {max_length} values",
    "missing": "has too few values",
}


def describe_all(section: str, error: ValidationError) -> list[str]:
    """All errors of a section; a list whose entries are wrong is not called too short as well."""
    faults = error.errors()
    wrong = {fault["loc"][0] for fault in faults if len(fault["loc"]) > 1}
    return [
        describe(section, fault)
        for fault in faults
        if not (fault["type"] == "too_short" and fault["loc"][:1] and fault["loc"][0] in wrong)
    ]


def describe(section: str, fault: Any) -> str:
    """An error of pydantic in the words of this package."""
    if fault["type"] == "value_error":  # about several keys; the message names them
        return str(fault["ctx"]["error"])
    key = ".".join([section, *(str(part) for part in fault["loc"] if isinstance(part, str))])
    if fault["type"] == "missing" and len(fault["loc"]) == 1:
        return f"{key} is missing; give it with --set {key}=VALUE"
    rule = RULES.get(fault["type"], fault["msg"]).format(**fault.get("ctx", {}))
    return f"{key} {rule}, got {fault['input']!r}"


def net_section(name: object, source_hash: str | None = None) -> type[NetConfig]:
    """The settings of a net: the common ones, and the further arguments of its function."""
    if not isinstance(name, str):
        return NetConfig
    if name in NETS:
        return built_in_section(name, NetConfig)
    if not is_path(name) and name not in installed("net"):
        return NetConfig
    return section_of_function(net_row(name, source_hash).build)


def built_in_section(name: str, common: type[NetConfig]) -> type[NetConfig]:
    """The common settings, and the further arguments of a built-in net's function."""
    return section_of_function(NETS[name].build, common, tuple(common.model_fields))


@cache
def section_of_function(
    build: Callable[..., Any], common: type[NetConfig] = NetConfig, known: tuple[str, ...] = ()
) -> type[NetConfig]:
    """The common settings and, from the arguments of a function, those that are not known."""
    arguments = list(inspect.signature(build).parameters.values())[2:]
    arguments = [each for each in arguments if each.name not in known]
    if not arguments:
        return common
    own: dict[str, Any] = {}
    for each in arguments:
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD):
            empty, default = each.empty, each.default
            kind = type(default) if each.annotation is empty else each.annotation
            own[each.name] = (Any, ...) if default is empty else (kind, default)
    return create_model("NetConfig", __base__=common, **own)


def net_faults(net: NetConfig) -> list[str]:
    try:
        allowed = net_row(net.name).options
    except ConfigError as error:
        return [str(error)]
    return [
        f"net.{key} is not an option of {net.name}; it has {', '.join(allowed)}"
        for key in net.options
        if key not in allowed
    ]


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`key=value` texts as a mapping; another form is an error, and so are two values of one key."""
    settings: dict[str, str] = {}
    for key, value in split_pairs(pairs):
        if settings.setdefault(key, value) != value:
            raise ConfigError(f"--set {key} has two values, {settings[key]} and {value}; give one of them")
    return settings


def split_pairs(pairs: list[str]) -> list[tuple[str, str]]:
    """`key=value` texts as pairs; the error message lists texts of another form."""
    parts = [(pair, *(part.strip() for part in pair.partition("="))) for pair in pairs]
    if wrong := [repr(pair) for pair, key, sign, _ in parts if not key or not sign]:
        raise ConfigError(f"--set takes KEY=VALUE, such as train.epochs=5; got {', '.join(wrong)}")
    return [(key, value) for _, key, _, value in parts]
