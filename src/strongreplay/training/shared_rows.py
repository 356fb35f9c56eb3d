"""The body of a net on several ranks: each computes some rows of a batch, and all get the features of all.

What comes after the features (head, loss, memory, optimiser) is computed by every rank from the same numbers.
The gradient of the features is therefore known everywhere; a rank passes that of its own rows back through
the body. The sums over ranks are part of the graph: during a shared pass the body uses links to its weights
whose backward pass adds up. So they are right for `backward` and `autograd.grad`, for copies of a net, and
for passes that are not shared, which exchange nothing and are always right.
"""

from collections.abc import Callable
from copy import deepcopy
from types import new_class
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from strongreplay.errors import ConfigError
from strongreplay.nets import Classifier, FeatureNet, find_head
from strongreplay.nets.lvt import Dropout
from strongreplay.training.parallel import Ranks
from strongreplay.training.shared_norm import Share, SharedDraws

Rows = Callable[[Tensor], Tensor]
FEWEST_ROWS = 2  # of each rank in a shared pass: with one row, batch norm may treat it as a special case


def share_rows(net: nn.Module, num_classes: int, ranks: Ranks) -> nn.Module:
    """Make the net divide the rows of its batches among the ranks; copies of it do so too."""
    if ranks.size == 1:
        return net
    if isinstance(net, Classifier):
        SharedRows(net.body, ranks)
        return net
    inner = net.net if isinstance(net, FeatureNet) else net
    try:
        name = net.head_name if isinstance(net, FeatureNet) else find_head(net, num_classes)
    except ConfigError as error:
        raise ConfigError(
            f"several devices need to know where the features of the net are: {error}"
        ) from None
    SharedRows(inner, ranks, name)
    return net


class SharedRows:
    """The forward pass of a module: a body, or a whole net, in which `head` is the layer after the body.

    It belongs to one module, whose class is replaced by a subclass of its own with another `forward`.
    """

    def __init__(self, module: nn.Module, ranks: Ranks, head: str = "") -> None:
        self.module, self.ranks, self.head = module, ranks, head
        self.share: Share | None = None  # during a shared pass
        self.gathered = 0  # times, in this pass
        self.links: tuple[object, dict[str, Tensor]] = (None, {})
        replace_forward(module, self)
        if head:
            expect_own_weights(module, head)
            module.get_submodule(head).register_forward_pre_hook(self.before_head)
        for layer in module.modules():
            if isinstance(layer, Dropout):
                layer.draw = SharedMask(layer.draw, self)  # type: ignore[assignment, method-assign]

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedRows":
        copy = object.__new__(SharedRows)
        memo[id(self)] = copy
        copy.ranks, copy.head, copy.share, copy.gathered = self.ranks, self.head, None, 0
        copy.module, copy.links = deepcopy(self.module, memo), (None, {})
        return copy

    def forward(self, whole_pass: Callable[..., Tensor], inputs: Tensor, *others: Tensor) -> Tensor:
        """`others` have as many rows as the inputs, such as prompts."""
        if self.share or not self.divides(inputs):
            return whole_pass(self.module, inputs, *others)
        self.share, self.gathered = Share(len(inputs), self.ranks), 0
        try:
            with SharedDraws(self.share):
                take, gather = self.share.take, self.share.gather
                rows = tuple(change_rows(each, take, gather) for each in (inputs, *others))
                found: Tensor = functional_call(self.module, self.linked(), rows)
            if not self.head:
                return change_rows(found, self.share.gather, self.share.take)
        finally:
            self.share = None
        if self.gathered != 1 or len(found) != len(inputs):
            raise ConfigError(
                f"several devices cannot share this net: its head {self.head} is used {self.gathered} times "
                f"in a forward pass, not once, or {len(inputs)} inputs give {len(found)} outputs"
            )
        return found

    def divides(self, inputs: Tensor) -> bool:
        """Whether rows are divided.

        Not in small batches, nor when per-sample gradients or hooks need all rows. Gradients in evaluation
        mode are taken to be per-sample ones; a layer that reads its own maps says so by `needs_all_rows`.
        """
        if len(inputs) < FEWEST_ROWS * self.ranks.size:
            return False
        if torch.is_grad_enabled() and not self.module.training:
            return False
        head = self.module.get_submodule(self.head) if self.head else None
        return not any(is_watched(layer) for layer in self.module.modules() if layer is not head)

    def linked(self) -> dict[str, Tensor]:
        """Links to the weights, by name. All passes between two changes of the weights share them, so that
        one backward pass adds up once."""
        if not torch.is_grad_enabled():
            return {}
        own = {
            name: weight
            for name, weight in self.module.named_parameters()
            if weight.requires_grad and not (self.head and name.startswith(f"{self.head}."))
        }
        key = [(id(weight), weight._version, weight.data_ptr()) for weight in own.values()]
        if self.links[0] != key:
            links = add_up(self.ranks, *own.values()) if own else ()
            self.links = key, dict(zip(own, links, strict=True))
        return self.links[1]

    def before_head(self, head: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self.share is None:
            return None
        self.gathered += 1
        return (change_rows(arguments[0], self.share.gather, self.share.take), *arguments[1:])


def replace_forward(module: nn.Module, rows: SharedRows) -> None:
    """Give the module a subclass of its class, whose forward pass is shared; names in its state stay."""
    kind = type(module)
    if "forward" in vars(module):
        raise ConfigError(f"several devices cannot share a {kind.__name__} with a forward of its own")

    def forward(module: nn.Module, inputs: Tensor, *others: Tensor) -> Tensor:
        own: SharedRows = vars(module)["shared_rows"]  # a copy of the module has its own
        return own.forward(kind.forward, inputs, *others)

    vars(module)["shared_rows"] = rows
    module.__class__ = new_class(kind.__name__, (kind,), {}, lambda space: space.update(forward=forward))


def is_watched(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or getattr(layer, "needs_all_rows", False))


def expect_own_weights(module: nn.Module, head: str) -> None:
    """Refuse weights that the head shares with the body: part of their gradient is known to one rank only."""
    every = list(module.named_parameters(remove_duplicate=False))
    of_head = {id(weight) for name, weight in every if name.startswith(f"{head}.")}
    shared = [name for name, weight in every if id(weight) in of_head and not name.startswith(f"{head}.")]
    if shared:
        raise ConfigError(f"several devices cannot share this net: {shared[0]} is also a weight of {head}")


class SharedMask(NamedTuple):
    """Draws the mask of a dropout for all rows, and takes those of this rank."""

    draw: Callable[[tuple[int, ...]], Tensor]
    rows: SharedRows

    def __call__(self, shape: tuple[int, ...]) -> Tensor:
        share = self.rows.share
        return share.part_of_all(self.draw, shape) if share else self.draw(shape)


class AddUp(Function):
    """Links to weights; their gradients are added up over the ranks."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        ctx.set_materialize_grads(False)  # no gradient for a weight that a loss does not depend on
        return tuple(weight.detach() for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        sums = iter(ctx.ranks.add_up([gradient for gradient in gradients if gradient is not None]))
        return None, *(None if gradient is None else next(sums) for gradient in gradients)


class ChangeRows(Function):
    """From a batch of some rows to one of others, and with gradients the way back."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, there: Rows, back: Rows) -> Tensor:
        ctx.back = back
        return there(given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


add_up: Callable[..., tuple[Tensor, ...]] = AddUp.apply
change_rows: Callable[[Tensor, Rows, Rows], Tensor] = ChangeRows.apply
