"""The body of any net: its own classifier head is found and removed, so that it outputs features."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from strongreplay.errors import ConfigError
from strongreplay.extensions import explain

NAMES = ("fc", "_fc", "head", "heads", "classifier", "logits", "last_linear")  # usual names of heads
COUNTS = (1000, 1001, 11221, 21841, 21843)  # classes of ImageNet-1k and ImageNet-21k


def body_of(
    net: nn.Module,
    shape: tuple[int, ...],
    where: str,
    num_classes: int | None = None,
    head: str | None = None,
) -> tuple[nn.Module, int]:
    """A copy of the net that answers with (B, D) features, and D."""
    body = deepcopy(net)
    found = head or find_own_head(body, shape, where, num_classes)
    if found is not None:
        layers = dict(body.named_modules())
        if found not in layers or not found:
            known = (
                ", ".join(name for name, layer in layers.items() if isinstance(layer, nn.Linear)) or "none"
            )
            raise ConfigError(f"net.head={found} is no layer of {where}; its linear layers are {known}")
        parent, _, own = found.rpartition(".")
        setattr(body.get_submodule(parent), own, nn.Identity())
    features = ask(body, shape, where)
    if features.dim() != 2:
        raise ConfigError(
            f"{where}: must answer with (B, D) features, got shape {tuple(features.shape)}; flatten them"
        )
    return body, features.shape[1]


def find_own_head(net: nn.Module, shape: tuple[int, ...], where: str, num_classes: int | None) -> str | None:
    """The name of the linear layer whose output is the answer, if it looks like a classifier's head.

    It is one if it has as many outputs as classes were asked for, the number of classes of ImageNet, or a
    usual name. A last linear layer of another kind is part of the features.
    """
    answers: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = [
        layer.register_forward_hook(lambda _, args, out, name=name: answers.update({name: (args[0], out)}))
        for name, layer in net.named_modules()
        if isinstance(layer, nn.Linear) and name
    ]
    try:
        answer = ask(net, shape, where)
    finally:
        for hook in hooks:
            hook.remove()
    for name, (_, out) in reversed(answers.items()):
        if out.shape == answer.shape and out.data_ptr() == answer.data_ptr():
            usual = any(part in NAMES for part in name.split("."))
            return name if usual or out.shape[1] in (num_classes, *COUNTS) else None
        if out.shape == answer.shape and out.shape[1] in COUNTS:
            raise ConfigError(
                f"{where}: changes the output of its head {name} afterwards, such as by a softmax; "
                "give the net without that, or without its head"
            )
    return None


@torch.no_grad()
def ask(net: nn.Module, shape: tuple[int, ...], where: str, images: Tensor | None = None) -> Tensor:
    """The answer to two images, or to black ones, in evaluation mode; every fault becomes a message."""
    modes = {module: module.training for module in net.modules()}
    try:
        answer: Any = net.eval()(torch.zeros(2, *shape) if images is None else images)
    except Exception as error:
        size = " x ".join(map(str, shape))
        raise ConfigError(
            f"{where}: cannot take images of {size} ({explain(error)}); give another --side"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not isinstance(answer, Tensor) or not answer.is_floating_point():
        kind = f"{answer.dtype} tensor" if isinstance(answer, Tensor) else type(answer).__name__
        raise ConfigError(
            f"{where}: must answer with a float tensor, got a {kind}; return the features alone"
        )
    if answer.dim() == 0 or len(answer) != 2:
        raise ConfigError(
            f"{where}: must give one row of features an image, got shape {tuple(answer.shape)} for 2 images"
        )
    return answer
