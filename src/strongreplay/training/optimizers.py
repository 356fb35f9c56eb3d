"""Optimisers from settings: SGD, Adam or AdamW, with or without a limit to the gradient's norm."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, Optimizer

from strongreplay.training.settings import TrainConfig


def make_optimizer(parameters: Iterable[Any], train: TrainConfig) -> Optimizer:
    """`parameters` are tensors or groups; a group's `lr_scale` multiplies its learning rate."""
    if train.optimizer in ("adam", "adamw"):
        kind = Adam if train.optimizer == "adam" else AdamW
        betas, decay = train.betas or (0.9, 0.999), train.weight_decay
        optimizer: Optimizer = without_compiler(kind)(
            parameters, lr=train.lr, betas=betas, weight_decay=decay
        )
    else:
        optimizer = without_compiler(SGD)(
            parameters,
            lr=train.lr,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
            nesterov=bool(train.nesterov),
        )
    for group in optimizer.param_groups:
        group["lr"] *= group.get("lr_scale", 1)
        if train.clip_norm is not None:
            group["clip_norm"] = train.clip_norm
    if train.clip_norm is not None:
        optimizer.register_step_pre_hook(clip_gradient)
    return optimizer


@cache
def without_compiler(kind: type[Optimizer]) -> Any:
    """The same optimiser, which does not import PyTorch's compiler: that takes more than a second.

    PyTorch wraps `step` and some other functions to keep them out of compiled code. Here nets alone are
    compiled, so `step` is taken without its wrapper, and the others are marked as wrapped already.
    """
    for function in vars(Optimizer).values():
        plain = getattr(function, "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            vars(plain)["__dynamo_disable"] = plain
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})


def clip_gradient(optimizer: Optimizer, *unused: object) -> None:
    """Clip the gradient before a step, without waiting for the device."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    clip_grad_norm_(parameters, optimizer.param_groups[0]["clip_norm"])


def set_rate(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"] if "lr_scale" in group else lr


def load_state(optimizer: Optimizer, state: Any) -> None:
    """Load a state from a file; a ValueError, TypeError, KeyError or similar if it does not fit."""
    before = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, made in zip(optimizer.param_groups, before, strict=True):
        for key, value in made.items():
            if key != "params" and kind_of(group[key]) is not kind_of(value):
                raise ValueError(f"optimiser: {key} must be like {value!r}, got {str(group[key])[:80]!r}")
    for parameter, held in optimizer.state.items():
        for name, value in held.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(f"optimiser: {name} has shape {[*value.shape]}, not {[*parameter.shape]}")
            if not isinstance(value, Tensor | int | float | None):
                raise ValueError(f"optimiser: {name} must be a tensor, got a {type(value).__name__}")


def kind_of(value: object) -> type:
    """The type of a setting; whole numbers and others are one kind."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def carry_over(old: Optimizer, new: Optimizer) -> None:
    """Copy the state of shared parameters, such as momentum, from an old optimiser to a new one."""
    for group in new.param_groups:
        for parameter in group["params"]:
            if parameter in old.state:
                new.state[parameter] = old.state[parameter]
    for group, before in zip(new.param_groups, old.param_groups, strict=False):
        group |= {key: value for key, value in before.items() if key != "params"}


@contextmanager
def with_gradients(optimizer: Optimizer, wanted: bool = True) -> Iterator[None]:
    """For a phase with its own parameters: inside, buffers and frozen weights require gradients too.

    Afterwards the gradients are removed, so that the optimiser of another phase does not apply them.
    """
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"] if wanted]
    frozen = [tensor for tensor in tensors if not tensor.requires_grad]
    for tensor in frozen:
        tensor.requires_grad_()
    try:
        yield
    finally:
        for tensor in frozen:
            tensor.requires_grad_(False)
        for tensor in tensors:
            tensor.grad = None
