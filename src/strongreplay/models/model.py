"""Model: a classifier that is kept up to date, and can be taken apart into parts and put together again.

The parts are what a store keeps of a version: `model` (settings, labels, generators), `net`, `old_net`,
`method` (what else the method owns), `memory` (samples to replay) and `held` (samples to judge by). Three of
them are enough to answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from strongreplay.data import images as codec
from strongreplay.data.user_data import Chunk, Label, digests
from strongreplay.data.views import crop_flip, moments, normalise, scale, standardise
from strongreplay.errors import ConfigError, DataError
from strongreplay.methods import METHODS, Method
from strongreplay.methods.base import evaluation_mode
from strongreplay.models.settings import OWN, ModelSettings, make_settings
from strongreplay.nets import Classifier, GrowingHead, build_net, seeded_init
from strongreplay.protocol import Problem, View, derive_generator
from strongreplay.storage.records import flatten

Parts = dict[str, Any]
TO_ANSWER = ("model", "net", "method")
SMALL_SIDE, TINY_SIDE = 32, 8  # grey images up to the first suit the small net; below the second only an MLP


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a remembered sample came from."""

    id: int
    source: str
    label: Label
    lesson: int  # from 1


@dataclass
class HeldOut:
    """Samples no lesson learns from: the gate judges by them."""

    images: Tensor
    columns: Tensor  # (H,) int64: the class of each
    keys: Tensor  # (H,) drawn once each; within a class the lowest stay

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Tensor) -> "HeldOut":
        return HeldOut(self.images[rows], self.columns[rows], self.keys[rows])


@dataclass
class Model:
    plan: ModelSettings
    shape: tuple[int, ...]
    mean: list[float]
    std: list[float]
    labels: list[Label]  # by column, never re-ordered
    method: Method
    generators: dict[str, torch.Generator]
    held: HeldOut
    device: torch.device
    view: View  # of training images
    lessons: int = 0
    next_id: int = 1
    origins: dict[str, Origin] = field(default_factory=dict)  # by digest of the sample
    files: dict[str, bytes] = field(default_factory=dict)  # by digest: an image as it was encoded once
    whole: bool = True  # False: it can answer, but not learn

    @property
    def memory(self) -> Any:
        """The method's, if it has one."""
        return getattr(self.method, "memory", None)

    @property
    def head_size(self) -> int:
        """Outputs of the net: one for each label, and those in reserve."""
        return cast(Classifier, self.method.net).head.out_features

    @property
    def test_view(self) -> View:
        return plain_view(self.plan, self.shape, self.mean, self.std)

    def scores(self, inputs: Tensor) -> Tensor:
        """(N, K) logits over the classes known, on the host."""
        return torch.cat(list(self.score_batches(inputs)))

    def answers(self, inputs: Tensor, on_batch: Callable[[int], None] = lambda count: None) -> list[Label]:
        """The likeliest label of each; only a batch has its logits in memory, classes may be thousands."""
        found: list[Label] = []
        for logits in self.score_batches(inputs):
            found += [self.labels[column] for column in logits.argmax(1).tolist()]
            on_batch(len(logits))
        return found

    @torch.no_grad()
    def score_batches(self, inputs: Tensor, batch_size: int = 500) -> Iterator[Tensor]:
        if tuple(inputs.shape[1:]) != self.shape:
            raise DataError(f"the model takes samples of shape {self.shape}, got {tuple(inputs.shape[1:])}")
        view = self.test_view
        with evaluation_mode(self.method):
            for batch in inputs.split(batch_size):
                yield self.method.predict(view(batch.to(self.device)))[:, : len(self.labels)].cpu()

    def num_bytes(self) -> dict[str, int]:
        """What replayed and held-out samples take on disk."""
        parts = self.sample_parts()
        return {name: tree_bytes(part) - tree_bytes(part.get("extra")) for name, part in parts.items()}

    # Taking apart and putting together

    def parts(self) -> Parts:
        state = dict(self.method.state_dict())
        net, state = split_prefix(state, "net.")
        old_net, state = split_prefix(state, "old_net.copy.")
        _, state = split_prefix(state, "memory.")
        about = {
            "plan": self.plan.to_dict(),
            "shape": list(self.shape),
            "mean": self.mean,
            "std": self.std,
            "labels": list(self.labels),
            "lessons": self.lessons,
            "next_id": self.next_id,
            "capacity": self.memory.capacity if self.memory is not None else 0,
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
        }
        parts = {"model": about, "net": net, "method": state} | self.sample_parts()
        return parts | ({"old_net": old_net} if old_net else {})

    def sample_parts(self) -> Parts:
        held = self.held
        parts: Parts = {
            "held": {"samples": self.pack_samples(held.images), "columns": held.columns, "keys": held.keys}
        }
        if (memory := self.memory) is not None and memory._buffers:
            rows = memory.rows
            columns = {name: column.cpu().clone() for name, column in zip(rows._fields, rows, strict=True)}
            samples = self.pack_samples(columns.pop("images"))
            parts["memory"] = {"samples": samples, "columns": columns, "extra": memory.get_extra_state()}
        elif memory is not None:
            parts["memory"] = {"samples": None, "columns": {}, "extra": memory.get_extra_state()}
        return parts

    def pack_samples(self, images: Tensor) -> dict[str, Any]:
        """Pixels or encoded files, and where each came from."""
        names = digests(images)
        found = [self.origins[name] for name in names]
        packed: dict[str, Any] = {"origins": [[o.id, o.source, o.label, o.lesson] for o in found]}
        if self.plan.learner.store == "raw" or len(self.shape) == 1:
            return packed | {"images": images.cpu().clone()}
        files, lengths = codec.join(
            [self.file_of(name, image) for name, image in zip(names, images, strict=True)]
        )
        return packed | {"files": files, "lengths": lengths}

    def file_of(self, name: str, image: Tensor) -> bytes:
        if name not in self.files:
            self.files[name] = codec.encode(image[None], self.plan.learner.store)[0]
        return self.files[name]


def new_model(
    plan: ModelSettings, shape: tuple[int, ...], mean: list[float], std: list[float], device: torch.device,
    num_classes: int, capacity: int, own_net: nn.Module | None = None,
) -> Model:  # fmt: skip
    """With a net of so many outputs; its initial weights are drawn from the plan's seed."""
    seed, fixed = plan.learner.seed, plan.learner.classes is not None
    generators = {
        name: derive_generator(seed, name) for name in ("order", "views", "replayed views", "growth")
    }
    with_draws = partial(training_view, plan, shape, mean, std)
    net = make_net(plan, shape, num_classes, own_net)
    if not fixed:
        net.head = GrowingHead.of(net.head)
    test_view = plain_view(plan, shape, mean, std)
    problem = Problem(num_classes, 1, with_draws(generators["replayed views"]), test_view, seed)
    row = METHODS[plan.learner.method]
    config = plan.method.model_copy(update={"memory_size": capacity}) if row.has_memory else plan.method
    method = row.build(net, problem, row.config.model_validate(config.model_dump())).to(device)
    dtype = torch.uint8 if len(shape) == 3 else torch.float32
    nothing = HeldOut(
        torch.empty(0, *shape, dtype=dtype),
        torch.empty(0, dtype=torch.int64),
        torch.empty(0, dtype=torch.float64),
    )
    view = with_draws(generators["views"])
    return Model(plan, shape, mean, std, [], method, generators, nothing, device, view)


def first_model(
    plan: ModelSettings, chunk: Chunk, device: torch.device, own_net: nn.Module | None = None
) -> Model:
    """A model that has seen nothing, made for samples like these."""
    shape = tuple(chunk.inputs.shape[1:])
    mean, std = given_moments(plan, shape) or moments(chunk.inputs)
    if len(shape) == 3 and shape[1] != shape[2] and own_net is None:
        raise DataError(f"images must be square, got {shape[2]} x {shape[1]} pixels; give a side")
    name = plan.net.name
    if name == "auto":
        plan = replace(plan, net=plan.net.model_copy(update=choose_net(shape, plan.net.width)))
    classes = plan.learner.classes
    num_classes = len(classes) if classes is not None else len(set(chunk.labels)) + plan.learner.reserve
    return new_model(plan, shape, mean, std, device, num_classes, 1, own_net)


def given_moments(plan: ModelSettings, shape: tuple[int, ...]) -> tuple[list[float], list[float]] | None:
    """Mean and deviation that the user knows better than the first data."""
    mean, std = plan.learner.mean, plan.learner.std
    if mean is None or std is None:
        return None
    if not len(mean) == len(std) == shape[0]:
        what = "channel" if len(shape) == 3 else "feature"
        raise ConfigError(
            f"learner.mean and learner.std must have a value for each {what}, {shape[0]}, "
            f"got {len(mean)} and {len(std)}"
        )
    return list(mean), list(std)


def choose_net(shape: tuple[int, ...], width: int | None) -> dict[str, Any]:
    """A net that learns samples of a shape in reasonable time on a CPU."""
    if len(shape) == 1 or shape[-1] < TINY_SIDE:
        return {"name": "mlp"}
    if shape[-1] < 2 * TINY_SIDE or (shape[0] == 1 and shape[-1] <= SMALL_SIDE):
        return {"name": "cnn"}
    return {"name": "resnet18", "width": width or 20}


def make_net(
    plan: ModelSettings, shape: tuple[int, ...], num_classes: int, own_net: nn.Module | None
) -> Classifier:
    if own_net is None:
        if plan.net.name == OWN:
            raise ConfigError(
                "this model has a net of its user's own; give it again: Learner.load(path, net=...)"
            )
        return build_net(
            plan.net.name, shape, num_classes, derive_generator(plan.learner.seed, "net"), **plan.net.options
        )
    if isinstance(own_net, Classifier):
        net = deepcopy(own_net)
    else:  # what it answers with is taken for features
        body = deepcopy(own_net)
        with torch.no_grad(), evaluation_mode(body):
            features = body(torch.zeros(2, *shape))
        if features.dim() != 2:
            raise ConfigError(
                f"net: must answer with (B, D) features, got shape {tuple(features.shape)}; flatten them"
            )
        net = Classifier(body, features.shape[1], num_classes)
    with seeded_init(derive_generator(plan.learner.seed, "net")):
        net.head = nn.Linear(net.head.in_features, num_classes)
    return net


def plain_view(
    plan: ModelSettings, shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]
) -> View:
    if not plan.learner.normalise:
        return scale
    return normalise(mean, std) if len(shape) == 3 else standardise(mean, std)


def training_view(
    plan: ModelSettings,
    shape: tuple[int, ...],
    mean: Sequence[float],
    std: Sequence[float],
    generator: torch.Generator,
) -> View:
    """The plain view of augmented images."""
    plain, augment = plain_view(plan, shape, mean, std), plan.learner.augment
    if augment == "auto":
        augment = "crop-flip" if shape[0] == 3 and len(shape) == 3 else "none"
    if augment == "none" or len(shape) == 1:
        return plain
    pad, flip = max(1, shape[-1] // 8), augment == "crop-flip"
    return lambda images: plain(crop_flip(images, pad, generator, flip))


def model_of(parts: Mapping[str, Any], device: torch.device, own_net: nn.Module | None = None) -> Model:
    """The inverse of `Model.parts`; without memory and held-out samples it can only answer."""
    about = parts["model"]
    plan, labels, shape = make_settings(flatten(about["plan"])), list(about["labels"]), tuple(about["shape"])
    fixed = plan.learner.classes
    num_classes = len(fixed) if fixed is not None else len(labels)
    model = new_model(
        plan, shape, about["mean"], about["std"], device, num_classes, about["capacity"], own_net
    )
    model.labels, model.lessons, model.next_id = labels, about["lessons"], about["next_id"]
    for name, generator in model.generators.items():
        generator.set_state(about["generators"][name])
    state = dict(parts["method"]) | {f"net.{key}": value for key, value in parts["net"].items()}
    state |= {f"old_net.copy.{key}": value for key, value in parts.get("old_net", {}).items()}
    model.whole = "held" in parts and ("memory" in parts or model.memory is None)
    if model.whole and model.memory is not None:
        state |= memory_state(model, parts["memory"])
    model.method.load_state_dict(state, strict=model.whole)
    if model.whole:
        held = parts["held"]
        model.held = HeldOut(unpack_samples(model, held["samples"]), held["columns"], held["keys"])
    return model


def memory_state(model: Model, part: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a state dict; columns have room for as many rows as the memory."""
    state: dict[str, Any] = {"memory._extra_state": part["extra"]}
    if part["samples"] is None:
        return state
    columns = {"images": unpack_samples(model, part["samples"])} | part["columns"]
    for name, column in columns.items():
        room = column.new_zeros((model.memory.capacity - len(column), *column.shape[1:]))
        state[f"memory.{name}"] = torch.cat([column, room])
    return state


def unpack_samples(model: Model, packed: Mapping[str, Any]) -> Tensor:
    """The inverse of `Model.pack_samples`; the model gets to know the origins."""
    files: list[bytes] = []
    if "images" in packed:
        images: Tensor = packed["images"]
    else:
        files = codec.part(packed["files"], packed["lengths"])
        images = codec.decode(files, model.shape)
    names = digests(images)
    model.origins |= {name: Origin(*entry) for name, entry in zip(names, packed["origins"], strict=True)}
    model.files |= dict(zip(names, files, strict=False))
    return images


def split_prefix(state: dict[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What begins with the prefix, without it; and the rest."""
    inside = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    return inside, {key: value for key, value in state.items() if not key.startswith(prefix)}


def tree_bytes(tree: Any) -> int:
    """Of all tensors in it."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, dict):
        return sum(tree_bytes(value) for value in tree.values())
    return sum(tree_bytes(value) for value in tree) if isinstance(tree, list | tuple) else 0
