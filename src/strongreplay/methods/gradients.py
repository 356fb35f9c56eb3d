"""Gradients as flat vectors, and per-sample gradients without a loop over samples.

A flat vector holds the trainable parameters in the order of `net.parameters()`. The gradient of a sample is
that of its own cross-entropy in evaluation mode. There samples do not share batch statistics, so one forward
and one backward pass give every layer's inputs and output gradients ("errors") for all samples, and from
these each sample's gradient, layer by layer. For a linear layer it is errors x inputs and is never
materialised; a convolution is a linear layer over patches. For nets with other layers torch.func computes the
same numbers with more time and memory. The file is long because each kind of layer has a formula of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import unwrap
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.func import functional_call, grad, vmap
from torch.nn.functional import batch_norm, cross_entropy, pad, unfold
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from strongreplay.methods.base import evaluation_mode
from strongreplay.nets import GrowingHead
from strongreplay.nets.numerics import full_precision
from strongreplay.protocol import Split, View

FISHER_CHUNK = 128  # images at a time; fixed, so that augmentation does not depend on the batch size
BLOCK_SIZE = 2**26  # largest number of per-sample gradient entries in memory at a time: 256 MiB
INPUT_DIMS = {nn.Linear: 2, GrowingHead: 2, nn.Conv2d: 4, nn.BatchNorm2d: 4}  # the layers that have a formula


class Trace(NamedTuple):
    """A layer with its inputs and the gradient of the loss at its outputs, for each sample."""

    layer: nn.Module
    inputs: Tensor
    errors: Tensor


Parameters = list[nn.Parameter]


def trainable(net: nn.Module) -> Parameters:
    """The trainable parameters. Callers keep the list: making it in every step takes noticeable time."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


@torch.no_grad()
def flat_weights(parameters: Parameters) -> Tensor:
    """(P,) a copy of the parameters."""
    # PyTorch's own helper does in one call what takes a dozen in Python. It does not copy a single tensor,
    # so that one is cloned.
    flat: Tensor = _flatten_dense_tensors(parameters)
    return flat.clone() if len(parameters) == 1 else flat


def flat_gradient(loss: Tensor, parameters: Parameters, retain_graph: bool = False) -> Tensor:
    """(P,) gradient of the loss; zero for parameters it does not depend on."""
    parts = torch.autograd.grad(loss, parameters, retain_graph=retain_graph, materialize_grads=True)
    flat: Tensor = _flatten_dense_tensors(parts)
    return flat


def descend_along(optimizer: Optimizer, parameters: Parameters, gradient: Tensor) -> None:
    """One optimiser step with a given gradient instead of a loss.

    A caller that writes every step's gradient into the same vector saves time: the parameters' `grad` are
    still views of it, and are not set again. (Equal addresses of living tensors mean the same tensor.)
    """
    first = parameters[0].grad
    if first is None or first.data_ptr() != gradient.data_ptr():
        for parameter, part in zip(parameters, _unflatten_dense_tensors(gradient, parameters), strict=True):
            parameter.grad = part
    optimizer.step()


@contextmanager
def after_step(optimizer: Optimizer) -> Iterator[None]:
    """Within the context, the weights are those after a plain SGD step with their gradients."""
    lr = optimizer.param_groups[0]["lr"]
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    kept = [parameter.data for parameter in parameters]
    moved = torch._foreach_add(kept, [parameter.grad for parameter in parameters], alpha=-lr)
    try:
        for parameter, weights in zip(parameters, moved, strict=True):
            parameter.data = weights
        yield
    finally:
        for parameter, weights in zip(parameters, kept, strict=True):
            parameter.data = weights


def is_plain(optimizer: Optimizer) -> bool:
    """Whether a step is exactly the gradient times one learning rate for all weights."""
    if unwrap(type(optimizer).step) is not unwrap(torch.optim.SGD.step) or len(optimizer.param_groups) > 1:
        return False
    group = optimizer.param_groups[0]
    return not any(group.get(key) for key in ("momentum", "weight_decay", "maximize", "clip_norm"))


def quadratic_pull(
    parameters: Parameters, anchor: Tensor, importance: Tensor, strength: float, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """strength * sum(importance * (theta - anchor)^2), and its gradient divided by 2 * strength.

    The gradient is written into `out`, if that is given.
    """
    distance = flat_weights(parameters).sub_(anchor)
    pull = torch.mul(importance, distance, out=out)
    return strength * torch.dot(pull, distance), pull


def widened(vectors: Tensor, before: Sequence[torch.Size], parameters: Parameters) -> Tensor:
    """Flat (..., P) vectors for parameters that have got more rows; the entries of new rows are zero."""
    parts = vectors.split([shape.numel() for shape in before], dim=-1)
    pairs = zip(parts, parameters, strict=True)
    return torch.cat([pad(part, (0, p.numel() - part.shape[-1])) for part, p in pairs], dim=-1)


def gradient_products(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """(N, N) inner products between the gradients of N samples."""
    traces = trace_layers(net, inputs, labels)
    if traces is not None:
        return torch.stack([layer_products(trace) for trace in traces]).sum(0)
    products = inputs.new_empty(len(inputs), len(inputs))
    chunks = torch.arange(len(inputs)).split(chunk_size(net))
    for number, rows in enumerate(chunks):  # holds two chunks of gradients at a time, recomputes the second
        gradients = sample_gradients(net, inputs[rows], labels[rows])
        products[rows[:, None], rows] = gradients @ gradients.T
        for others in chunks[number + 1 :]:
            block = gradients @ sample_gradients(net, inputs[others], labels[others]).T
            products[rows[:, None], others], products[others[:, None], rows] = block, block.T
    return products


def squared_gradients(net: nn.Module, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """(P,) sum over samples of weight * gradient^2."""
    traces = trace_layers(net, inputs, labels)
    if traces is not None:
        parts = dict(part for trace in traces for part in layer_squares(trace, weights))
        return torch.cat([parts.get(p, torch.zeros_like(p)).flatten() for p in trainable(net)])
    size = chunk_size(net)
    chunks = zip(inputs.split(size), labels.split(size), weights.split(size), strict=True)
    return torch.stack([w @ sample_gradients(net, x, y).square_() for x, y, w in chunks]).sum(0)


def expected_squares(net: nn.Module, inputs: Tensor, labels: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """(P,) sum over samples and over (labels, weights) of weight * gradient^2: Fisher information."""
    return torch.stack([squared_gradients(net, inputs, *each) for each in labels]).sum(0)


def viewed_chunks(train: Split, view: View, device: torch.device) -> Iterator[Split]:
    """The samples in chunks, as a net sees them."""
    for images, labels in zip(
        train.inputs.split(FISHER_CHUNK), train.labels.split(FISHER_CHUNK), strict=True
    ):
        yield Split(view(images.to(device)), labels.to(device))


def every_label(probabilities: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each class as the label of all samples, with its (N, C) probabilities as weights."""
    for label, weights in enumerate(probabilities.unbind(1)):
        yield torch.full_like(weights, label, dtype=torch.int64), weights


def layer_products(trace: Trace) -> Tensor:
    layer, inputs, errors = trace
    if isinstance(layer, nn.Linear):
        overlap = inputs @ inputs.T
        return (errors @ errors.T) * (overlap if layer.bias is None else overlap + 1)
    blocks = [block.flatten(1) for _, block in layer_gradients(trace)]
    return torch.stack([block @ block.T for block in blocks]).sum(0)


def layer_squares(trace: Trace, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    layer, inputs, errors = trace
    if isinstance(layer, nn.Linear):
        squares = weights[:, None] * errors.square()
        yield layer.weight, squares.T @ inputs.square()
        if layer.bias is not None:
            yield layer.bias, squares.sum(0)
        return
    sums: dict[Tensor, list[Tensor]] = {}
    for parameter, block in layer_gradients(trace):
        sums.setdefault(parameter, []).append(torch.tensordot(weights, block.square_(), 1))
    for parameter, parts in sums.items():
        yield parameter, torch.cat(parts)


def layer_gradients(trace: Trace) -> Iterator[tuple[Tensor, Tensor]]:
    """A layer's parameters with their (N, ...) gradients; large ones come in blocks of output channels."""
    layer, inputs, errors = trace
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        patches = unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (N, K, L)
        channels = max(1, BLOCK_SIZE // patches[:, :, 0].numel())
        for part in errors.flatten(2).split(channels, dim=1):
            yield layer.weight, part @ patches.mT
    if isinstance(layer, nn.BatchNorm2d):
        whitened = batch_norm(inputs, layer.running_mean, layer.running_var, eps=layer.eps)
        yield layer.weight, (errors * whitened).sum((2, 3))
    if isinstance(layer.bias, nn.Parameter):
        yield layer.bias, errors.sum((2, 3))


def trace_layers(net: nn.Module, inputs: Tensor, labels: Tensor) -> list[Trace] | None:
    """The trace of each layer, or none if the formulas do not apply to the net."""
    layers = [layer for layer in net.modules() if any(True for _ in layer.parameters(recurse=False))]
    num_owned = sum(p.numel() for layer in layers for p in layer.parameters(recurse=False))
    # The numbers differ if a parameter is frozen or shared by two layers.
    if num_owned != sum(p.numel() for p in trainable(net)) or not all(map(has_formula, layers)):
        return None
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def watch(layer: nn.Module, arguments: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        # The gradient of an added zero is that of the outputs, even if the next layer works in place.
        probe = torch.zeros_like(outputs, requires_grad=True)
        calls.append((layer, arguments[0].detach(), probe))
        return outputs + probe

    handles = [layer.register_forward_hook(watch) for layer in layers]
    try:
        with evaluation_mode(net), full_precision():
            loss = cross_entropy(net(inputs), labels, reduction="sum")
    finally:
        for handle in handles:
            handle.remove()
    used_twice = len({layer for layer, _, _ in calls}) < len(calls)
    if used_twice or any(seen.dim() != INPUT_DIMS[type(layer)] for layer, seen, _ in calls):
        return None
    errors = torch.autograd.grad(loss, [probe for _, _, probe in calls], materialize_grads=True)
    return [Trace(layer, seen, error) for (layer, seen, _), error in zip(calls, errors, strict=True)]


def has_formula(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d) and (
        layer.groups > 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    ):
        return False
    if isinstance(layer, nn.BatchNorm2d) and not layer.track_running_stats:
        return False
    return type(layer) in INPUT_DIMS


def chunk_size(net: nn.Module) -> int:
    return max(1, BLOCK_SIZE // sum(p.numel() for p in trainable(net)))


def sample_gradients(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """(N, P) the gradient of every sample, for any net; running statistics are constants."""
    parameters = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    constants = {name: p.detach() for name, p in net.named_parameters() if not p.requires_grad}
    constants |= dict(net.named_buffers())

    def loss_of(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(net, (parameters, constants), (image[None],))
        return cross_entropy(logits, label[None])

    with evaluation_mode(net), full_precision(), UsualLayout():
        gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, inputs, labels)
    return torch.cat([gradients[name].flatten(1) for name in parameters], dim=1)


class UsualLayout(TorchFunctionMode):
    """Within the context, memory formats that are asked for are ignored: vmap refuses channels last."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if "memory_format" in options:
            options["memory_format"] = torch.contiguous_format
        return func(*args, **options)
