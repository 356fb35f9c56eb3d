"""Scaled gradients for float16, whose smallest numbers are larger than many gradients.

Gradients are scaled where they enter the body of a net, and scaled back where they leave it, at its inputs
and weights. A method sees them as they are, whether it calls `backward` or asks for a gradient itself. The
GradScaler of PyTorch chooses the scale, and leaves out a step whose gradients overflow.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.autograd import Function
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary


class ScaleGradient(Function):
    """Passes its input on; its gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, factor: Tensor) -> Tensor:
        ctx.factor = factor
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def scale_gradient(tensor: Any, factor: Tensor) -> Any:
    if not isinstance(tensor, Tensor) or not tensor.requires_grad:
        return tensor
    return ScaleGradient.apply(tensor, factor)  # type: ignore[no-untyped-call]


class Scaling:
    """The scale of a training, and the optimisers that step by it."""

    def __init__(self, device_type: str) -> None:
        self.scaler = GradScaler(device_type)
        self.factor = torch.ones(())
        self.weights = WeakIdKeyDictionary()  # that have a hook

    def enter(self, module: nn.Module, inputs: Iterable[Any], device: torch.device) -> list[Any]:
        """Before a forward pass: the inputs, whose gradients will be scaled back."""
        self.factor = self.scaler.scale(torch.ones((), device=device))
        for weight in module.parameters():
            if weight.requires_grad and weight not in self.weights:
                weight.register_hook(lambda gradient: gradient / self.factor)
                self.weights[weight] = True
        return [scale_gradient(each, 1 / self.factor) for each in inputs]

    def leave(self, outputs: Tensor) -> Tensor:
        return scale_gradient(outputs, self.factor)  # type: ignore[no-any-return]

    def guard(self, optimizer: Optimizer) -> None:
        """From now on the optimiser leaves out a step with gradients that are not finite."""
        checked = CheckedOptimizer(optimizer)

        def step() -> None:
            checked.look()
            self.scaler.unscale_(checked)  # type: ignore[arg-type]
            self.scaler.step(checked)  # type: ignore[arg-type]
            self.scaler.update()

        optimizer.step = step  # type: ignore[assignment, method-assign]


class CheckedOptimizer:
    """What GradScaler asks of an optimiser; its one gradient is the largest of all, already scaled back."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.step = optimizer, optimizer.step
        self.param_groups: list[dict[str, list[Tensor]]] = []

    def look(self) -> None:
        groups = self.optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        probe = torch.zeros((), device=gradients[0].device, requires_grad=True)
        probe.grad = torch.stack([gradient.abs().max() for gradient in gradients]).max()
        self.param_groups = [{"params": [probe]}]
