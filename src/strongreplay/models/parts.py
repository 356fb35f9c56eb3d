"""Split a model into the parts that a store writes, and build it from them again.

The parts are `model` (settings, labels, generators), `net`, `old_net`, `method` (other state of the method),
`memory` (samples to replay), `held` (held-out samples) and `backbone` (weights of a frozen one). Prediction
needs three of them and the backbone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from strongreplay.errors import DataError
from strongreplay.models.build import new_model
from strongreplay.models.check import refuses_misfits
from strongreplay.models.held_out import HeldOut, check_labels
from strongreplay.models.model import Model
from strongreplay.models.settings import stored_settings
from strongreplay.nets.backbones import rebuild_backbone

Parts = dict[str, Any]
TO_ANSWER = ("model", "net", "method")
FROZEN = "backbone"  # a part that only models on frozen features have


def parts_of(model: Model) -> Parts:
    state = dict(model.method.state_dict())
    net, state = split_prefix(state, "net.")
    old_net, state = split_prefix(state, "old_net.copy.")
    _, state = split_prefix(state, "memory.")
    about = {
        "plan": model.settings.to_dict(),
        "shape": list(model.shape),
        "mean": model.mean,
        "std": model.std,
        "labels": list(model.labels),
        "lessons": model.num_updates,
        "next_id": model.next_id,
        "capacity": model.memory.capacity if model.memory is not None else 0,
        "generators": {name: generator.get_state() for name, generator in model.generators.items()},
    }
    if model.backbone is not None:
        about["backbone"] = model.backbone.about
    parts = {"model": about, "net": net, "method": state} | sample_parts(model)
    if model.reader is not None:  # one object for all versions; a body that is trained is in the part `net`
        parts["backbone"] = dict(model.reader.body.state_dict())
    return parts | ({"old_net": old_net} if old_net else {})


def sample_parts(model: Model) -> Parts:
    """The held-out samples and, if the method has one, the memory."""
    held, memory = model.held, model.memory
    samples = model.samples.pack(held.images, held.ids)
    parts: Parts = {"held": {"samples": samples, "columns": held.columns, "keys": held.keys}}
    if len(model.learnt):
        parts["held"]["learnt"] = model.learnt
    if memory is None:
        return parts
    parts["memory"] = {"samples": None, "columns": {}, "extra": memory.get_extra_state()}
    if memory.ids is not None:
        columns = {name: column.cpu().clone() for name, column in memory.rows._asdict().items()}
        samples = model.samples.pack(columns.pop("images"), memory.ids)
        parts["memory"] |= {"samples": samples, "columns": columns}
    return parts


def sample_bytes(model: Model) -> dict[str, int]:
    """Bytes of replayed and held-out samples on disk."""
    parts = sample_parts(model)
    beside = ("extra", "learnt")
    return {
        name: tree_bytes({key: tree for key, tree in part.items() if key not in beside})
        for name, part in parts.items()
    }


@refuses_misfits
def model_of(parts: Mapping[str, Any], device: torch.device, own_net: nn.Module | None = None) -> Model:
    """The inverse of `parts_of`; without memory and held-out samples the model can only predict."""
    about = parts["model"]
    settings, labels, shape = stored_settings(about["plan"]), list(about["labels"]), tuple(about["shape"])
    fixed = settings.learner.classes
    num_classes = len(fixed) if fixed is not None else len(labels)
    backbone = None
    if (described := about.get("backbone")) is not None:
        if settings.net.is_frozen and FROZEN not in parts:
            raise DataError("the weights of the backbone are missing; read the part `backbone` too")
        backbone = rebuild_backbone(described, parts.get(FROZEN))
    model = new_model(
        settings,
        shape,
        about["mean"],
        about["std"],
        device,
        num_classes,
        about["capacity"],
        own_net,
        backbone,
    )
    model.labels, model.num_updates, model.next_id = labels, about["lessons"], about["next_id"]
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
        images, ids = model.samples.unpack(held["samples"])
        model.held = HeldOut(images, held["columns"], held["keys"], ids)
        model.held.check(len(labels))
        model.learnt = held.get("learnt", model.learnt).to(torch.int64).flatten()
    return model


def memory_state(model: Model, part: Mapping[str, Any]) -> dict[str, Any]:
    """The memory's entries of a state dict; each column has as many rows as the memory's capacity."""
    state: dict[str, Any] = {"memory._extra_state": part["extra"]}
    if part["samples"] is None:
        return state
    images, ids = model.samples.unpack(part["samples"])
    if "labels" in part["columns"]:
        check_labels(part["columns"]["labels"], len(model.labels), "memory")
    for name, column in ({"images": images, "ids": ids} | part["columns"]).items():
        room = column.new_zeros((model.memory.capacity - len(column), *column.shape[1:]))
        state[f"memory.{name}"] = torch.cat([column, room])
    return state


def split_prefix(state: dict[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries whose names begin with the prefix, which is cut off, and the other entries."""
    inside = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    return inside, {key: value for key, value in state.items() if not key.startswith(prefix)}


def tree_bytes(tree: Any) -> int:
    """The bytes of all tensors in a tree."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, dict):
        return sum(tree_bytes(value) for value in tree.values())
    return sum(tree_bytes(value) for value in tree) if isinstance(tree, list | tuple) else 0
