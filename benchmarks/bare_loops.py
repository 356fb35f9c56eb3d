"""Bare loops for `speed.py`: only a step's forward passes, losses, backward passes and optimiser steps.

Most methods pass batches of some sizes through one net; `BARE` says how many rows, and how often. `OWN` has
those that pass through nets of their own: a generator, frozen columns, a ViT with prompts.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

Ready = list[dict[float, tuple[Tensor, Tensor]]]  # data of several steps: a real loop has new data each step


@dataclass(frozen=True)
class Bare:
    """The passes of a step: rows of the forward passes of each backward pass, and passes without gradient."""

    backwards: tuple[tuple[float, ...], ...]  # rows as multiples of the batch size
    free: tuple[float, ...] = ()
    num_steps: int = 1  # optimiser steps
    distances: int = 0  # number of mean squared distances between logits in the loss

    @property
    def sizes(self) -> set[float]:
        return {rows for forwards in (*self.backwards, self.free) for rows in forwards}


ANCHORS = 10 * 4 / 128  # HAL: ten classes, four finished tasks, as a multiple of the MLP's batch
SHARE = 40 / 128  # GEM: 200 samples over five tasks
CANDIDATES = 200 / 128  # MIR: as many as the memory has, on the MLP
ONE = 1 / 128  # MER: a single sample, on the MLP, for which it is made; two draws and the sample itself

BARE = {
    "sgd": Bare(((1,),)),
    "er": Bare(((2,),)),
    "der": Bare(((1, 1),), distances=1),
    "derpp": Bare(((1, 1, 1),), distances=1),
    "ser": Bare(((1, 1),), free=(1,), distances=2),
    "oewc": Bare(((1,),)),
    "si": Bare(((1,),)),
    "lwf": Bare(((1,),), distances=1),
    "agem": Bare(((1,), (1,))),
    "gem": Bare(((SHARE,), (SHARE,), (SHARE,), (SHARE,), (1,))),
    "fdr": Bare(((1,), (1,)), num_steps=2),
    "ert": Bare(((2,),)),
    "hal": Bare(((2,), (ANCHORS,)), free=(ANCHORS, 1)),
    "clser": Bare(((2, 1),), free=(1, 1), distances=1),
    "tamil": Bare(((1, 1, 1),), free=(1,), distances=1),
    "er-ace": Bare(((1, 1),)),
    "scommer": Bare(((1, 1),), free=(1,), distances=1),
    "mir": Bare(((1,), (1,)), free=(CANDIDATES, CANDIDATES)),
    # All ten classes are in every task here, so no future columns are left, and nothing is contrasted. After
    # four tasks, a quarter of the stream's batch passes with the first replayed one.
    "xder": Bare(((1, 1.25, 1),), distances=1),
    "ewc": Bare(((1,),)),
    "rwalk": Bare(((2,),)),
    "mer": Bare(((ONE,),) * 3 * 128, num_steps=3 * 128),
    "dri": Bare(((1, 1, 1),), free=(1,), distances=1),
    "pass": Bare(((4,),), free=(4,)),  # four turns of each image
}


def bare_block(passes: Bare, net: nn.Module, old: nn.Module, ready: Ready, steps: int) -> None:
    """Steps of one net, on prepared tensors."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    targets = torch.zeros(2 * max(len(labels) for _, labels in ready[0].values()), 10)
    for step in range(steps):
        data = ready[step % len(ready)]
        for rows in passes.free:
            with torch.no_grad():
                old(data[rows][0])
        for number, forwards in enumerate(passes.backwards):
            logits = [net(data[rows][0]) for rows in forwards]
            losses = [cross_entropy(z, data[rows][1]) for z, rows in zip(logits, forwards, strict=True)]
            losses += [0.2 * mse_loss(z, targets[: len(z)]) for z in logits[: passes.distances]]
            loss = reduce(torch.add, losses)
            if number == 0 or passes.num_steps > 1:
                optimizer.zero_grad()
            loss.backward()
            if passes.num_steps > 1:
                optimizer.step()
        if passes.num_steps == 1:
            optimizer.step()


Loss = Callable[[Tensor, Tensor], Tensor]  # of a batch: images in [0, 1] and labels


def of_dgr(method: Any) -> Loss:
    """Net and generator, twice each; the old ones once, without gradient."""

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        noise = zeros[: len(inputs)]
        with torch.no_grad():
            method.old_generator(noise), method.old_net(inputs)
        of_net = [cross_entropy(method.net(inputs), labels) for _ in range(2)]
        of_generator = [method.generator.loss(inputs, noise) for _ in range(2)]
        total: Tensor = reduce(torch.add, [*of_net, *of_generator])
        return total

    zeros = torch.zeros(1000, method.config.code_size)
    return loss


def of_pnn(method: Any) -> Loss:
    """All columns; only the last one has gradients."""
    return lambda inputs, labels: cross_entropy(method.columns(inputs)[-1], labels)


def of_l2p(method: Any) -> Loss:
    """The body without prompts, then with some, which are the same for all images."""
    net, top = method.net, method.config.top

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            net.body(inputs)
        prompts = net.prompts[:top].flatten(0, 1).expand(len(inputs), -1, -1)
        return cross_entropy(net.head(net.body(inputs, prompts)), labels)

    return loss


def of_dualprompt(method: Any) -> Loss:
    """The body without prompts, then with those of the task."""
    net = method.net

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            net.body(inputs)
        expert = net.experts[-1].expand(len(inputs), *net.experts[-1].shape)
        return cross_entropy(net.head(net.prompted(inputs, expert)), labels)

    return loss


OWN: dict[str, Callable[[Any], Loss]] = {
    "dgr": of_dgr,
    "pnn": of_pnn,
    "l2p": of_l2p,
    "dualprompt": of_dualprompt,
}


def own_block(loss: Loss, parameters: list[nn.Parameter], ready: Ready, steps: int) -> None:
    """Steps of a method with nets of its own."""
    optimizer = torch.optim.SGD(parameters, lr=1e-4)
    for step in range(steps):
        optimizer.zero_grad()
        loss(*ready[step % len(ready)][1]).backward()
        optimizer.step()


def bare_loop(name: str, method: Any) -> tuple[set[float], Callable[[Ready, int], None]]:
    """The sizes of the batches it needs, and a function that takes steps on them, with copies of all nets."""
    if name in OWN:
        twin = deepcopy(method)
        parts = [twin.net, *([twin.generator] if hasattr(twin, "generator") else [])]
        parameters = [p for part in parts for p in part.parameters() if p.requires_grad]
        return {1}, partial(own_block, OWN[name](twin), parameters)
    net = deepcopy(method.net)  # includes the layers that the method has added
    old = deepcopy(net).eval().requires_grad_(False)
    return BARE[name].sizes, partial(bare_block, BARE[name], net, old)
