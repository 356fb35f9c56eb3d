"""Parts of methods whose nets grow from task to task: frozen copies, fresh layers, new parameters."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from strongreplay.methods.base import OldNet
from strongreplay.nets import seeded_init

MANY_BYTES = 1 << 28  # of weights: worth a sentence before a run begins


def notice_of_size(method: str, net: nn.Module, num_tasks: int) -> str:
    """What a copy of the net for each task takes, if that is much."""
    size = num_tasks * sum(parameter.nbytes for parameter in net.parameters())
    if size < MANY_BYTES:
        return ""
    gigabytes = f"{size / 1e9:.2f} GB"
    return f"{method} keeps a net for each task: {num_tasks} tasks take at least {gigabytes} of weights"


class FrozenNets(nn.Module):
    """Copies of a net, taken one after another; none of them changes any more."""

    def __init__(self, live: nn.Module) -> None:
        super().__init__()
        self._live, self.nets = (live,), nn.ModuleList()

    def take(self) -> None:
        old = OldNet(self._live[0])
        old.take()
        self.nets.append(old)

    @torch.no_grad()
    def each_features(self, inputs: Tensor) -> list[Tensor]:
        nets: list[Any] = list(self.nets)
        return [net.copy.features(inputs) for net in nets]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Submodules are loaded after this call, so there must be as many as the state has.
        count = count_children(state_dict, prefix + "nets.")
        del self.nets[count:]
        while len(self.nets) < count:
            self.take()
        super()._load_from_state_dict(state_dict, prefix, *args)


def count_children(state_dict: dict[str, Any], prefix: str) -> int:
    """How many entries of a list of modules or parameters a state has; the prefix ends with a dot."""
    return len({key.removeprefix(prefix).split(".")[0] for key in state_dict if key.startswith(prefix)})


@torch.no_grad()
def reset_weight(weight: Tensor, generator: torch.Generator) -> None:
    """PyTorch's default initial weights of a linear layer, drawn on the host."""
    if len(weight):
        with seeded_init(generator):
            weight.copy_(nn.Linear(weight.shape[1], weight.shape[0], bias=False).weight)


def reset_module(module: nn.Module, generator: torch.Generator) -> None:
    """PyTorch's default initial weights of all layers, drawn on the host; statistics start anew too."""
    fresh = deepcopy(module).cpu()
    with seeded_init(generator):
        for layer in fresh.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
    module.load_state_dict(fresh.state_dict())


def add_missing(optimizer: Optimizer, module: nn.Module) -> None:
    """Add the module to the optimiser, if that was made before the module."""
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [parameter for parameter in module.parameters() if id(parameter) not in known]
    if missing:
        optimizer.add_param_group({"params": missing, "lr": optimizer.param_groups[0]["lr"]})
