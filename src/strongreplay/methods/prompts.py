"""Parts of methods that learn prompts for a frozen ViT: the net, cosines with keys, the loss of a task."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from strongreplay.errors import ConfigError
from strongreplay.nets import Classifier
from strongreplay.nets.vit import ViTBody
from strongreplay.protocol import Task

TINY = 1e-12  # smallest squared norm of a vector in a cosine
SPREAD = 0.01  # prompts and keys start uniformly between 0 and this


class PromptedNet(Classifier):
    """The body of a ViT, frozen, with its head; a method adds its prompts."""

    body: ViTBody

    def __init__(self, net: nn.Module, method: str) -> None:
        nn.Module.__init__(self)
        if not isinstance(net, Classifier) or not isinstance(net.body, ViTBody):
            kind = type(getattr(net, "body", net)).__name__
            raise ConfigError(f"{method} needs a net with tokens, got {kind}; use net.name=vit")
        self.body, self.head = net.body.requires_grad_(False), net.head

    @torch.no_grad()
    def queries(self, inputs: Tensor) -> Tensor:
        """(B, D) features without prompts."""
        return cast(Tensor, self.body(inputs))


class TaskColumns(nn.Module):
    """The classes of the current task: the loss is computed over these alone."""

    current: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        # (C,) all before the first task
        self.register_buffer("current", torch.ones(num_classes, dtype=torch.bool))

    def begin(self, task: Task, method: str) -> None:
        outside = set(task.train.labels.unique().tolist()) - set(task.classes)
        if outside:
            raise ConfigError(
                f"{method} learns the classes of a task {task.classes}, got labels {outside} too"
            )
        self.current.zero_()[list(task.classes)] = True

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits.masked_fill(~self.current, -torch.inf), labels)

    def grow(self, num_classes: int) -> None:
        self.current = pad(self.current, (0, max(num_classes - len(self.current), 0)))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        if (saved := state_dict.get(f"{prefix}current")) is not None:  # it may know more classes
            self.current = self.current.new_zeros(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *args)


def unit(vectors: Tensor) -> Tensor:
    return vectors * vectors.square().sum(-1, keepdim=True).clamp(min=TINY).rsqrt()


def cosines(queries: Tensor, keys: Tensor) -> Tensor:
    """(B, N) from (B, D) queries and (N, D) keys."""
    return unit(queries) @ unit(keys).t()


def nearest(similarities: Tensor, count: int) -> Tensor:
    """(B, count) the most similar keys of each sample; of equal ones the first."""
    return similarities.argsort(dim=1, descending=True, stable=True)[:, :count]


def vote(picks: Tensor, num_keys: int) -> Tensor:
    """(B, k) the k keys that most samples of the batch picked, for all of them; of equal ones the first."""
    keys = torch.arange(num_keys, device=picks.device)
    counts = (picks[..., None] == keys).sum((0, 1))
    chosen = counts.argsort(descending=True, stable=True)[: picks.shape[1]]
    return chosen.expand(len(picks), -1)


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    """Initial prompts or keys, drawn on the host."""
    return SPREAD * torch.rand(*shape, generator=generator)
