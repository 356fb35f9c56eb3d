"""Precision: how the settings train.precision and train.compile make the nets of a method compute.

Autocast is entered around the forward pass of a net's body. The answers are cast back to float32, so heads,
losses, distances and memories compute in float32, and weights, gradients and the optimiser are float32.
What a method measures when a task ends (importance, exemplars, class means) is computed in float32 as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from strongreplay.errors import ConfigError
from strongreplay.methods.base import Method
from strongreplay.nets.numerics import Run, computing
from strongreplay.training.scaling import Scaling
from strongreplay.training.settings import TrainConfig

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
VARIANTS = 64  # of one net's code: mode, gradients, precision, layout, task


class Precision:
    """How nets compute on a device, by the settings of a training."""

    def __init__(self, train: TrainConfig, device: torch.device) -> None:
        check_precision(train, device)
        self.dtype, self.device_type = DTYPES.get(train.precision or ""), device.type
        self.scaling = Scaling(device.type) if train.precision == "fp16" else None
        self.compiled: WeakKeyDictionary[nn.Module, Run] | None = None
        if train.compile:
            self.compiled = WeakKeyDictionary()
            allow_variants()

    def guard(self, optimizer: Optimizer) -> Optimizer:
        """With float16, the optimiser leaves out steps whose gradients overflow."""
        if self.scaling:
            self.scaling.guard(optimizer)
        return optimizer

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the rest: nothing, or the scale of float16's gradients."""
        return {"scaling": self.scaling.scaler.state_dict()} if self.scaling else {}

    def load(self, state: dict[str, Any]) -> None:
        if self.scaling:
            self.scaling.scaler.load_state_dict(state["scaling"])

    @contextmanager
    def applied(self, method: Method) -> Iterator[None]:
        """Within the context, all nets of the method compute in this way."""
        if self.dtype is None and self.compiled is None:
            yield
            return
        with computing(self, method, method.net):
            yield

    def call(self, run: Run, module: nn.Module, *inputs: Any) -> Tensor:
        if self.compiled is not None and run.__name__ == "forward" and len(inputs[0]) > 1:
            run = self.compile(run, module, *inputs)
        if self.scaling:
            inputs = tuple(self.scaling.enter(module, inputs, inputs[0].device))
        with torch.autocast(self.device_type, self.dtype) if self.dtype else nullcontext():
            outputs = run(*inputs).float()
        return self.scaling.leave(outputs) if self.scaling else outputs

    def compile(self, run: Run, module: nn.Module, *inputs: Any) -> Run:
        """The compiled function of a net; its code serves a range of batch sizes, which PyTorch chooses.

        Another process finds the same code in the cache, also if its first batch has another size.
        """
        assert self.compiled is not None
        for value in inputs:
            if isinstance(value, Tensor):
                torch._dynamo.maybe_mark_dynamic(value, 0)
        if module not in self.compiled:
            self.compiled[module] = torch.compile(run, dynamic=False)
        return self.compiled[module]


def allow_variants() -> None:
    """Beyond its limit of variants PyTorch goes on without compiling; here that is an error.

    Which calls are compiled must not depend on the calls before, or a resume would not be exact.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = VARIANTS
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def check_precision(train: TrainConfig, device: torch.device) -> None:
    """Refuse a precision that makes no sense on the device."""
    if train.precision == "fp16" and device.type != "cuda":
        raise ConfigError(
            f"train.precision=fp16 needs a CUDA device, got {device.type}, which computes float16 slowly or "
            "not at all; take train.precision=bf16 or fp32"
        )
