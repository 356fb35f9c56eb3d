"""How a net computes: in which precision, and whether compiled. Weights and answers are float32 in any case.

The body of a net (or the whole net, if it has no body of its own) is called through an `Entry`, which looks
up the numerics in force. A method therefore knows neither: its logits, loss, distances and memory are
float32, and its backward pass runs outside of autocast, as PyTorch advises. Copies of a net have entries too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor, nn

from strongreplay.nets.classifier import Classifier

Run = Callable[..., Tensor]
ENTRIES = ("forward", "features")


class Numerics(Protocol):
    """How the calls of nets are computed while it is in force."""

    def call(self, run: Run, module: nn.Module, *inputs: Any) -> Tensor: ...


IN_FORCE: ContextVar[Numerics | None] = ContextVar("numerics", default=None)


@contextmanager
def in_force(numerics: Numerics | None) -> Iterator[None]:
    """Within the context, nets with entries compute in this way; None: plainly, in float32."""
    token = IN_FORCE.set(numerics)
    try:
        yield
    finally:
        IN_FORCE.reset(token)


def full_precision() -> AbstractContextManager[None]:
    """Within the context, nets compute in float32, for numbers that need it, such as per-sample gradients."""
    return in_force(None)


class Entry:
    """Stands for a function of a module, `forward` or `features`, and computes it by the numerics in force.

    It is kept as an attribute of the module itself, so names in a state stay the same.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *inputs: Any) -> Tensor:
        run: Run = getattr(type(self.module), self.name).__get__(self.module)
        numerics = IN_FORCE.get()
        return run(*inputs) if numerics is None else numerics.call(run, self.module, *inputs)


@contextmanager
def computing(numerics: Numerics, owner: nn.Module, net: nn.Module) -> Iterator[None]:
    """Within the context, `net` and all nets in `owner`, copies included, compute by the numerics."""
    for module, name in entry_points(owner, net):
        setattr(module, name, Entry(module, name))
    try:
        with in_force(numerics):
            yield
    finally:
        for module in owner.modules():
            for name in ENTRIES:
                if isinstance(vars(module).get(name), Entry):
                    delattr(module, name)


def entry_points(owner: nn.Module, net: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules that compute in another way, with the name of the function that is called."""
    found = [each for each in owner.modules() if isinstance(each, Classifier) or has_features(each)]
    inside = set(net.modules())
    if not any(each in inside for each in found):
        found = [each for each in owner.modules() if type(each) is type(net)]  # the net and its copies
    for each in found:
        if isinstance(each, Classifier):
            yield each.body, "forward"  # the head stays in float32: it is small, and it may grow
        else:
            yield from ((each, name) for name in ENTRIES if name == "forward" or has_features(each))


def has_features(module: nn.Module) -> bool:
    """Whether the class has a function `features`; in torchvision's nets it is a module of the instance."""
    return callable(getattr(type(module), "features", None))
