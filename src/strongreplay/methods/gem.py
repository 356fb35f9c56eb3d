"""Gradient Episodic Memory (GEM).

Paper: Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning", 2017,
https://arxiv.org/abs/1706.08840
Reference: mammoth, tag neurips2020: an equal share of random samples is stored when a task ends, a task's
gradient is that of all its stored samples, and the loss is over the whole head (the authors' own code masks
the classes of other tasks). If a step would raise the loss of a past task, g + G'v replaces g, with v from
    min 1/2 v'(GG' + eps I)v + (Gg)'v  subject to v >= gamma  (dual of the paper's Eq. 11)
Difference from the reference: this quadratic programme is solved on the device, in float64 (float32 on mps),
by an interior-point method; the products GG' and Gg are computed in the precision of the gradients.
"""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import Method, MethodConfig, Problem, descend, draw_share, share_of_memory
from strongreplay.methods.gradients import descend_along, flat_gradient, trainable
from strongreplay.methods.samples import TaskSamples
from strongreplay.protocol import Batch, Task, Terms

STEPS = 40  # of the interior-point method; 20 reach 1e-9 on most programmes
RIDGE, SMALLEST = 1e-12, 1e-30
PRECISE = {"mps": torch.float32}  # has no float64


class GEMConfig(MethodConfig):
    memory_size: int = Field(200, ge=1, description="samples kept, an equal share per task")
    gamma: float = Field(0.5, ge=0, description="smallest weight of a past gradient in a corrected step")
    eps: float = Field(1e-3, ge=0, description="added to the diagonal of the quadratic programme")


def solve(products: Tensor, overlaps: Tensor, gamma: float) -> Tensor:
    """argmin 1/2 v'Qv + p'v subject to v >= gamma, for Q = products (semi-definite) and p = overlaps.

    With u = v - gamma and c = p + Q gamma, the conditions are Qu + c = s, u >= 0, s >= 0 and us = 0. The
    interior-point method of Mehrotra follows them from us = 1 to us = 0. It takes the same number of steps
    for every programme and reads nothing, so the host need not wait.
    """
    linear = overlaps + gamma * products.sum(1)
    tiny = torch.finfo(products.dtype).tiny
    size, slope = products.diagonal().amax().clamp(min=tiny), linear.abs().amax().clamp(min=tiny)
    scaled, target = products / size, linear / slope
    u, s = torch.ones_like(linear), torch.ones_like(linear)
    for _ in range(STEPS):
        # The ridge is for equal gradients, which make Q singular. It bends the path, not the solution.
        factor = torch.linalg.cholesky_ex(scaled + torch.diag(s / u + RIDGE))[0]
        missed, gap = scaled @ u + target - s, u * s
        du, ds = newton(factor, missed, gap, u, s)
        left = ((u + longest(u, du) * du) * (s + longest(s, ds) * ds)).mean()
        centre = (left / gap.mean()) ** 3 * gap.mean()
        du, ds = newton(factor, missed, gap + du * ds - centre, u, s)
        u, s = u + 0.995 * longest(u, du) * du, s + 0.995 * longest(s, ds) * ds
        u, s = u.clamp(min=SMALLEST), s.clamp(min=SMALLEST)
    return gamma + u * (u > s) * (slope / size)  # in the solution one of the two is zero


def newton(factor: Tensor, missed: Tensor, gap: Tensor, u: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The step (du, ds) with Q du - ds = -missed and s du + u ds = -gap."""
    du = torch.cholesky_solve((-missed - gap / u)[:, None], factor)[:, 0]
    return du, -(gap + s * du) / u


def longest(start: Tensor, step: Tensor) -> Tensor:
    """The largest part of the step, at most 1, that keeps all entries at or above zero."""
    return torch.where(step < 0, -start / step, 1.0).amin().clamp(max=1)


def correct(gradients: Tensor, gamma: float, eps: float) -> Tensor:
    """The gradient to use, from the (t + 1, P) gradients of t past tasks and of the batch."""
    products = (gradients @ gradients.T).to(PRECISE.get(gradients.device.type, torch.float64))
    past, current, overlaps = gradients[:-1], gradients[-1], products[:-1, -1]
    harmless = (overlaps >= 0).all()
    if harmless.device.type == "cpu" and harmless:  # reading is free there, and saves the programme
        return current
    damping = eps * torch.eye(len(past), dtype=products.dtype, device=products.device)
    weights = solve(products[:-1, :-1] + damping, overlaps, gamma)
    return torch.where(harmless, current, current + weights.to(past.dtype) @ past)


class GEM(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: GEMConfig | None = None) -> None:
        super().__init__()
        self.weights = trainable(net)
        self.net, self.config, self.view = net, config or GEMConfig(), problem.train_view
        self.share = share_of_memory("gem", self.config.memory_size, problem)
        self.memory = Memory(TaskSamples, self.config.memory_size, problem.generator("memory"))
        self.counts: list[int] = []  # of stored samples of each past task; from the memory, not saved
        self.register_load_state_dict_post_hook(count_again)  # type: ignore[no-untyped-call]

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        if len(self.memory) == 0:
            return descend(optimizer, {"current": cross_entropy(self.net(batch.inputs), batch.labels)})
        parameters, (images, labels, _), counts = self.weights, self.memory.rows, self.counts
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

    def count(self) -> None:
        """Count the stored samples of each past task; the memory holds them in the order of tasks."""
        self.counts = []
        if len(self.memory):
            self.counts = self.memory.rows.tasks.unique_consecutive(return_counts=True)[1].tolist()

    def end_task(self, task: Task) -> None:
        chosen = draw_share(self.memory, task.train, self.share, self.weights[0].device)
        tasks = torch.full_like(chosen.labels, task.index)
        self.memory.append(TaskSamples(chosen.inputs, chosen.labels, tasks), chosen.ids)
        self.count()

    def begin_task(self, task: Task) -> Task:
        self.count()  # rows may have been erased
        return task


def count_again(method: GEM, unused: object) -> None:
    method.count()
