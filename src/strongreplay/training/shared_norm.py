"""What the rows of a batch share inside a net: the statistics of batch norm, and the draws of dropout.

While a rank computes its rows, batch norm uses the statistics of all rows, and a dropout draws for all rows.
Both work on any device and backend; PyTorch's SyncBatchNorm needs a GPU.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from strongreplay.errors import ConfigError
from strongreplay.training.parallel import Ranks

DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d}
REFUSED = {F.alpha_dropout, F.feature_alpha_dropout, torch.batch_norm, torch.dropout}


class Share:
    """How a batch of `num_rows` is divided: nearly equally, earlier ranks get one row more."""

    def __init__(self, num_rows: int, ranks: Ranks) -> None:
        each, more = divmod(num_rows, ranks.size)
        self.ranks, self.num_rows = ranks, num_rows
        self.sizes = [each + (rank < more) for rank in range(ranks.size)]
        self.first, self.size = sum(self.sizes[: ranks.rank]), self.sizes[ranks.rank]

    def take(self, whole: Tensor) -> Tensor:
        """This rank's rows of all."""
        return whole[self.first : self.first + self.size]

    def gather(self, own: Tensor) -> Tensor:
        """All rows, from each rank's own."""
        most = self.sizes[0]
        if self.sizes[-1] == most:
            return self.ranks.gather(own).flatten(0, 1)
        padded = torch.cat([own, own.new_zeros(most - len(own), *own.shape[1:])])
        found = self.ranks.gather(padded)
        return torch.cat([part[:size] for part, size in zip(found, self.sizes, strict=True)])

    def part_of_all(self, draw: Callable[[tuple[int, ...]], Tensor], shape: tuple[int, ...]) -> Tensor:
        """This rank's part of what is drawn for all rows; a net may have several places for each row."""
        places = shape[0] // self.size
        return draw((places * self.num_rows, *shape[1:]))[places * self.first :][: shape[0]]


class SharedDraws(TorchFunctionMode):
    """Within it, batch norm and dropout see a rank's rows as a part of the whole batch."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return batch_norm(*args, share=self.share, **kwargs)
        if func in DROPOUTS:
            return dropout(*args, func=func, share=self.share, **kwargs)
        if func in REFUSED:
            raise ConfigError(f"several devices cannot share {func.__name__}; use torch.nn.functional's")
        return func(*args, **kwargs)


def dropout(
    inputs: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, func: Any, share: Share
) -> Tensor:
    if not training or not p:
        return inputs
    mask = partial(torch.ones, dtype=inputs.dtype, device=inputs.device)
    return inputs * share.part_of_all(lambda shape: func(mask(shape), p, True), tuple(inputs.shape))


def batch_norm(
    inputs: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    share: Share,
) -> Tensor:
    """PyTorch's batch norm with the statistics of all rows."""
    if not training:
        return F.batch_norm(inputs, running_mean, running_var, weight, bias, False, momentum, eps)
    outputs, mean, variance = normalise(inputs, weight, bias, eps, share)
    if running_mean is not None and running_var is not None:
        count = inputs.numel() // inputs.shape[1] // share.size * share.num_rows
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(variance.to(running_var.dtype) * (count / (count - 1)), momentum)
    return outputs


class Normalise(Function):
    """Rows normalised by the mean and variance of each channel over all ranks, which are returned too."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, share: Share
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = inputs if inputs.dtype == torch.float64 else inputs.float()
        dims = [dim for dim in range(inputs.dim()) if dim != 1]
        moments = share.ranks.gather(torch.stack(torch.var_mean(wide, dims, correction=0)))  # (R, 2, C)
        sizes = torch.tensor(share.sizes, dtype=wide.dtype).div_(share.num_rows)[:, None].to(wide.device)
        variances, means = moments.unbind(1)
        mean = (sizes * means).sum(0)
        variance = (sizes * (variances + (means - mean).square())).sum(0)
        ctx.share, ctx.dims = share, dims
        ctx.save_for_backward(inputs, weight, mean, (variance + eps).rsqrt())
        ctx.mark_non_differentiable(mean, variance)
        outputs = F.batch_norm(wide, mean, variance, weight, bias, False, 0.0, eps)
        return outputs.to(inputs.dtype), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, errors: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, mean, scale = ctx.saved_tensors
        shape = [-1 if dim == 1 else 1 for dim in range(inputs.dim())]
        white = (inputs - mean.view(shape)).mul_(scale.view(shape))
        sums = torch.stack([errors.sum(ctx.dims, dtype=mean.dtype), (errors * white).sum(ctx.dims)])
        total = ctx.share.ranks.add_up([sums])[0]
        total /= inputs.numel() // inputs.shape[1] // ctx.share.size * ctx.share.num_rows
        factor = scale if weight is None else scale * weight
        moved = errors - total[0].view(shape) - white.mul_(total[1].view(shape))
        of_weight, of_bias = (None, None) if weight is None else (sums[1], sums[0])
        return moved.mul_(factor.view(shape)).to(inputs.dtype), of_weight, of_bias, None, None


normalise: Callable[..., tuple[Tensor, Tensor, Tensor]] = Normalise.apply
