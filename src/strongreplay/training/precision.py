"""Precision: how the settings train.precision and train.compile make the nets of a method compute.

Autocast is entered around the forward pass of a net's body. The answers are cast back to float32, so heads,
losses, distances and memories compute in float32, and weights, gradients and the optimiser are float32.
What a method measures when a task ends (importance, exemplars, class means) is computed in float32 as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from strongreplay.errors import ConfigError
from strongreplay.methods.base import Method
from strongreplay.nets.numerics import Run, computing
from strongreplay.training.settings import TrainConfig

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """How nets compute on a device, by the settings of a training."""

    def __init__(self, train: TrainConfig, device: torch.device) -> None:
        check_precision(train, device)
        self.dtype, self.device_type = DTYPES.get(train.precision or ""), device.type

    @contextmanager
    def applied(self, method: Method) -> Iterator[None]:
        """Within the context, all nets of the method compute in this way."""
        if self.dtype is None:
            yield
            return
        with computing(self, method, method.net):
            yield

    def call(self, run: Run, module: nn.Module, *inputs: Any) -> Tensor:
        with torch.autocast(self.device_type, self.dtype):
            outputs = run(*inputs)
        return outputs.float() if outputs.is_floating_point() else outputs


def check_precision(train: TrainConfig, device: torch.device) -> None:
    """Refuse a precision that makes no sense on the device."""
    if train.precision == "fp16" and device.type != "cuda":
        raise ConfigError(
            f"train.precision=fp16 needs a CUDA device, got {device.type}, which computes float16 slowly or "
            "not at all; take train.precision=bf16 or fp32"
        )
