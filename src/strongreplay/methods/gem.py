"""Gradient Episodic Memory (GEM).

Paper: Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning", 2017,
https://arxiv.org/abs/1706.08840
Reference: mammoth, tag neurips2020: an equal share of random samples is stored when a task ends, a task's
gradient is that of all its stored samples, and the loss is over the whole head (the authors' own code masks
the classes of other tasks). If a step would raise the loss of a past task, g + G'v replaces g, with v from
    min 1/2 v'(GG' + eps I)v + (Gg)'v  subject to v >= gamma  (dual of the paper's Eq. 11)
Differences from the reference: this quadratic programme is solved as non-negative least squares on v - gamma,
in float64 on the CPU; the products GG' and Gg are computed on the device in the precision of the gradients.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import Method, MethodConfig, Problem, descend, share_of_memory
from strongreplay.methods.gradients import descend_along, flat_gradient, trainable
from strongreplay.protocol import Batch, Task, Terms
from strongreplay.sampling import draw_distinct


class Sample(NamedTuple):
    images: Tensor
    labels: Tensor
    tasks: Tensor  # (M,) number of the task the sample came from


class GEMConfig(MethodConfig):
    memory_size: int = Field(200, ge=1, description="samples kept, an equal share per task")
    gamma: float = Field(0.5, ge=0, description="smallest weight of a past gradient in a corrected step")
    eps: float = Field(1e-3, ge=0, description="added to the diagonal of the quadratic programme")


def solve(products: NDArray[np.float64], overlaps: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """argmin 1/2 v'Qv + p'v subject to v >= gamma, for Q = products (semi-definite) and p = overlaps."""
    from scipy.optimize import nnls

    # With Q = A'A and u = v - gamma this is min |Au - b|^2 over u >= 0, where A'b = -(p + Q gamma). A and b
    # come from eigenvectors, because Q is singular if two past gradients are equal and eps is 0.
    values, vectors = np.linalg.eigh(products)
    linear = overlaps + gamma * products.sum(1)
    roots = np.sqrt(values.clip(min=0))
    usable = roots > 1e-7 * max(float(roots.max()), np.finfo(np.float64).tiny)
    matrix = roots[usable, None] * vectors.T[usable]
    target = -(vectors.T[usable] @ linear) / roots[usable]
    solution: NDArray[np.float64] = nnls(matrix, target, maxiter=100 * len(linear))[0] + gamma
    return solution


def correct(gradients: Tensor, gamma: float, eps: float) -> Tensor:
    """The gradient to use, from the (t + 1, P) gradients of t past tasks and of the batch."""
    # The step's only sync with the CPU, which solves the programme if some product is negative.
    products = (gradients @ gradients.T).cpu().double().numpy()
    past, current, overlaps = gradients[:-1], gradients[-1], products[:-1, -1]
    if (overlaps >= 0).all():
        return current
    weights = solve(products[:-1, :-1] + eps * np.eye(len(past)), overlaps, gamma)
    return current + torch.tensor(weights, dtype=past.dtype, device=past.device) @ past


class GEM(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: GEMConfig | None = None) -> None:
        super().__init__()
        self.weights = trainable(net)
        self.net, self.config, self.view = net, config or GEMConfig(), problem.train_view
        self.share = share_of_memory("gem", self.config.memory_size, problem)
        self.memory = Memory(Sample, self.config.memory_size, problem.generator("memory"))
        self.known_counts: list[int] | None = None  # a cache, computed from the memory; not saved

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        if len(self.memory) == 0:
            return descend(optimizer, {"current": cross_entropy(self.net(batch.inputs), batch.labels)})
        parameters, (images, labels, _), counts = self.weights, self.memory.rows, self.counts()
        size = sum(parameter.numel() for parameter in parameters)
        gradients = parameters[0].new_empty(len(counts) + 1, size)  # filled row by row, without a second copy
        losses = []
        for row, past in enumerate(zip(images.split(counts), labels.split(counts), strict=True)):
            losses.append(cross_entropy(self.net(self.view(past[0])), past[1]))
            gradients[row] = flat_gradient(losses[-1], parameters)
        current = cross_entropy(self.net(batch.inputs), batch.labels)
        gradients[-1] = flat_gradient(current, parameters)
        descend_along(optimizer, parameters, correct(gradients, self.config.gamma, self.config.eps))
        return {"current": current.detach(), "replay": torch.stack(losses).detach().mean()}

    def counts(self) -> list[int]:
        """Number of stored samples of each past task; the memory holds them in the order of tasks."""
        if self.known_counts is None:  # one device sync per task
            self.known_counts = self.memory.rows.tasks.unique_consecutive(return_counts=True)[1].tolist()
        return self.known_counts

    def end_task(self, task: Task) -> None:
        rows = draw_distinct(len(task.train), self.share, self.memory.generator)
        chosen = task.train.take(rows).to(next(self.net.parameters()).device)
        self.memory.make_room(len(chosen))
        tasks = torch.full_like(chosen.labels, task.index)
        self.memory.append(Sample(chosen.inputs, chosen.labels, tasks), chosen.ids)
        self.known_counts = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.known_counts = None
        super()._load_from_state_dict(state_dict, prefix, *args)
