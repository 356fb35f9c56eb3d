"""The settings of a kept model, validated once; some can be changed by a later update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from strongreplay.data.codec import Codec
from strongreplay.data.user_data import Label
from strongreplay.errors import ConfigError, unknown
from strongreplay.methods import METHODS, MethodConfig, MethodRow, method_row
from strongreplay.models.budget import DEFAULT_MEMORY, Budget
from strongreplay.nets import NETS
from strongreplay.nets.backbones import is_backbone
from strongreplay.nets.published import PUBLISHED
from strongreplay.storage.records import flatten
from strongreplay.training.settings import (
    NetConfig,
    Section,
    TrainConfig,
    build_sections,
    built_in_section,
    net_faults,
)

BACKBONES = f"Backbones: {', '.join(PUBLISHED)}, timm:NAME, FILE.onnx, mine.py:factory; see: ser list nets"
OWN = "own"  # the name of a net that is not in NETS: the user passes it to `Learner`
DEFAULTS: dict[str, Any] = {
    "train.lr": 0.03,
    "train.epochs": 20,
    "learner.sampling": "balanced",
    "learner.correction": 3,  # benchmarks/scratch_months.py: 12 to 15 points after five months
}
# Models of version 0.1 have no such settings; they go on as they were.
UNSET: dict[str, Any] = {"learner.sampling": None, "learner.correction": None}
# Chunks are small, so the learning rate is small; SER's consistency term has a larger weight than in runs.
DEFAULTS_OF: dict[str, dict[str, Any]] = {"ser": {"method.alpha": 0.5}}
# A moving average of the weights answers: 3 points in the same benchmark. A head alone needs none.
FROM_SCRATCH: dict[str, dict[str, Any]] = {"ser": {"method.average": 0.99}}
NONE_IS_OFF = (*UNSET, "method.average")
CLOSED_FORM = ("ncm", "slda")  # methods that compute a head from frozen features, without training
# A head on frozen features of length one (`models/build.py`) takes large steps.
DEFAULTS_OF_HEAD: dict[str, Any] = {"train.lr": 1.0, "learner.correction": None}
CHANGEABLE = (
    "learner.memory",
    "learner.val",
    "learner.sampling",
    "learner.correction",
    "train.",
)  # settings that a later update can change


FIXED = ("train.first_epochs",)  # it belongs to the first update
IGNORED = {"train.keep_momentum": "every update of a kept model starts without momentum; leave it out"}


class LearnerConfig(Section):
    added = frozenset({"sampling", "correction"})
    method: str = Field("ser", description="method of training")
    memory: int | str = Field(
        DEFAULT_MEMORY, description="samples or bytes to keep, 500 or 20MB, or both; one fifth is held out"
    )
    sampling: Literal["balanced"] | None = Field(
        None, description="balanced: each sample once, as many of each class; none: reservoir, as in runs"
    )
    val: float = Field(0.1, ge=0, lt=1, description="share of each chunk that is held out for testing")
    correction: int | None = Field(
        None, ge=1, description="epochs of training the head alone, on the memory, after an update"
    )
    store: Codec = Field("raw", description="how images are kept on disk: raw pixels, png or jpeg")
    augment: Literal["auto", "none", "crop", "crop-flip"] = Field(
        "auto", description="augmentation of training images; auto: crop-flip for colour, none for grey"
    )
    normalise: bool = Field(True, description="with mean and deviation of the first data")
    mean: tuple[float, ...] | None = Field(
        None, description="mean of each channel in [0, 1] or feature; none: of the data"
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(None, description="deviation; needs mean")
    classes: tuple[Label, ...] | None = Field(
        None, min_length=1, description="complete list of classes; none: the head grows"
    )
    reserve: int = Field(10, ge=0, description="spare rows of a growing head for later classes")
    seed: int = Field(0, ge=0, description="random seed")

    @model_validator(mode="after")
    def check_pair(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("learner.mean and learner.std belong together; give both or none")
        return self

    @field_validator("memory")
    @classmethod
    def check(cls, value: int | str) -> int | str:
        Budget.parse(value)
        return value


class KeptNetConfig(NetConfig):
    """The net of a kept model; a backbone has further settings."""

    tune: Literal["nothing", "head", "all"] | None = Field(
        None, description="what is trained of a backbone: nothing, the head, or all"
    )
    weights: str | None = Field(None, description="timm and vit only: a .safetensors file")
    body_rate: float | None = Field(
        None, gt=0, description="rate of the body as a multiple of train.lr, with tune=all; none: 0.1"
    )
    mean: tuple[float, ...] | None = Field(
        None, description="backbones only: mean of each channel in [0, 1]; none: the backbone's"
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(None, description="deviation; needs mean")
    added: ClassVar[frozenset[str]] = frozenset({"head", "tune", "weights", "body_rate", "mean", "std"})

    @model_validator(mode="after")
    def check_pair(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("net.mean and net.std belong together; give both or none")
        return self

    @property
    def options(self) -> dict[str, Any]:
        own = {"name", "tune", "weights", "weights_hash", "body_rate"}
        return {key: value for key, value in self.model_dump(exclude=own).items() if value is not None}

    @property
    def is_frozen(self) -> bool:
        """Whether the method sees features of a frozen backbone instead of images."""
        return self.tune in ("nothing", "head")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    learner: LearnerConfig
    method: MethodConfig
    net: KeptNetConfig
    train: TrainConfig

    @property
    def budget(self) -> Budget:
        return Budget.parse(self.learner.memory)

    def to_dict(self) -> dict[str, Any]:
        names = ("learner", "method", "net", "train")
        # The budget decides how many samples a method keeps.
        return {name: getattr(self, name).model_dump(mode="json", exclude={"memory_size"}) for name in names}

    def changed(self, settings: Mapping[str, Any]) -> "ModelSettings":
        """A copy with other settings for later updates; settings of the net and the method cannot change."""
        held, method = flatten(self.to_dict()), settings.get("learner.method", self.learner.method)
        if method != self.learner.method:  # checked first: another method has other settings
            raise ConfigError(fixed_as("learner.method", self.learner.method, method))
        other = make_settings(UNSET | held | dict(settings))
        asked = flatten(other.to_dict())
        faults = [
            fixed_as(key, held.get(key), asked.get(key))
            for key in held | asked
            if asked.get(key) != held.get(key) and (key in FIXED or not key.startswith(CHANGEABLE))
        ]
        if faults:
            raise ConfigError("\n".join(faults))
        return other


def fixed_as(key: str, held: object, given: object) -> str:
    return f"{key} was fixed as {held!r} when the model was made, got {given!r}; leave it out"


def check_used(given: Mapping[str, Any], settings: ModelSettings, takes_features: bool = False) -> None:
    """Refuse settings that were given and have no effect with this net, method and kind of samples."""
    method, net = settings.learner.method, settings.net
    given = {key: value for key, value in given.items() if value is not None}
    turned_on = [key for key, value in given.items() if str(value).lower() not in ("none", "auto", "raw")]
    rules = [
        (
            method in CLOSED_FORM,
            [key for key in given if key.startswith("train.") and key != "train.batch_size"],
            f"{method}, which computes its head in one pass; leave it out, or train a head: --method ser",
        ),
        (
            not method_row(method).has_memory,
            [key for key in turned_on if key in ("learner.sampling", "learner.correction")],
            f"{method}, which replays no samples; leave it out",
        ),
        (
            takes_features,
            [key for key in turned_on if key in ("learner.augment", "learner.store")],
            "features, which are kept instead of images; leave it out",
        ),
        (
            not is_backbone(net.name),
            [key for key in given if key in ("net.tune", "net.body_rate")],
            f"net {net.name}, all of which is trained; leave it out, or give --net a pretrained backbone",
        ),
        (
            net.is_frozen,
            [key for key in given if key == "net.body_rate"],
            "a frozen body; leave it out, or train it: --tune all",
        ),
    ]
    if faults := [
        f"{', '.join(keys)} has no effect with {why}" for holds, keys, why in rules if holds and keys
    ]:
        raise ConfigError("\n".join(faults))


def stored_settings(plan: Mapping[str, Any]) -> ModelSettings:
    """The settings that a version holds."""
    return make_settings(
        UNSET | {key: value for key, value in flatten(dict(plan)).items() if key not in IGNORED}
    )


def kept_section(settings: Mapping[str, Any], row: MethodRow) -> type[NetConfig]:
    """The settings of the net that is named, or else of the one that the method needs."""
    named = str(settings.get("net.name", "auto"))
    named = row.net if named == "auto" and row.net else named
    return built_in_section(named, KeptNetConfig) if named in NETS else KeptNetConfig


def defaults_of(method: str, tune: str | None) -> dict[str, Any]:
    defaults = {"net.name": "auto"} | DEFAULTS | DEFAULTS_OF.get(method, {})
    if tune is None:
        return defaults | FROM_SCRATCH.get(method, {})
    return defaults | (DEFAULTS_OF_HEAD if tune in ("nothing", "head") else {})


def faults_of_net(net: NetConfig) -> list[str]:
    if is_backbone(net.name):
        return []
    if net.name not in NETS:
        return [str(unknown("net", net.name, [*NETS, *PUBLISHED], BACKBONES))]
    return net_faults(net)


def make_settings(settings: Mapping[str, Any]) -> ModelSettings:
    """From names such as learner.memory, method.alpha, net.name, train.epochs; reports all faults at once."""
    if settings.get("learner.method") == "auto":
        settings = {key: value for key, value in settings.items() if key != "learner.method"}
    if (tune := settings.get("net.tune")) == "none":  # as typed; in a setting "none" means that it is not set
        settings = {**settings, "net.tune": "nothing"}
    elif tune not in (None, "nothing", "head", "all"):
        raise ConfigError(f"net.tune must be none, head or all, got {str(tune)!r}; give one of them")
    name = str(settings.get("learner.method", "ser"))
    row = method_row(name)
    if not row.grows:
        usable = ", ".join(each for each, row in METHODS.items() if row.grows)
        raise ConfigError(f"{name} can't learn classes that are added later; take one of {usable}")
    if "method.memory_size" in settings:
        raise ConfigError("method.memory_size follows from learner.memory; set that instead")
    sections: dict[str, type[BaseModel]] = {
        "learner": LearnerConfig, "method": row.config, "net": kept_section(settings, row),
        "train": TrainConfig,
    }  # fmt: skip
    built, faults = build_sections(sections, defaults_of(name, settings.get("net.tune")) | dict(settings))
    faults += [f"{key} has no effect here: {why}" for key, why in IGNORED.items() if settings.get(key)]
    if isinstance(net := built.get("net"), NetConfig) and net.name not in ("auto", OWN):
        faults += faults_of_net(net)
    if faults:
        raise ConfigError("\n".join(faults))
    return ModelSettings(**built)
