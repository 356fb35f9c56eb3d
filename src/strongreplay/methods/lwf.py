"""Learning without Forgetting (LwF).

Paper: Li and Hoiem, "Learning without Forgetting", 2016, https://arxiv.org/abs/1606.09282
Reference: mammoth, tag neurips2020, which gave the published numbers: no T^2 in front of the distillation,
and a squared-weight term that is not halved.
Differences from the reference: targets are recorded on normalised images, the kind the net is trained on;
the reference shows it bare pixels, which is `targets="raw"`. The temperature is a setting, not always 2.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, log_softmax
from torch.optim import Optimizer

from strongreplay.methods.base import (
    Method,
    MethodConfig,
    Problem,
    SavedGenerator,
    allocate_buffers,
    descend,
    evaluation_mode,
    predict_all,
)
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Task, Terms

LOWEST = torch.finfo(torch.float32).min / 2


class LwFConfig(MethodConfig):
    alpha: float = Field(1.0, ge=0, description="weight of the distance to the old answers")
    temperature: float = Field(2.0, gt=0, description="divides logits before their softmax is compared")
    l2: float = Field(5e-4, ge=0, description="weight of the sum of squared weights")
    warmup_epochs: int = Field(1, ge=0, description="passes that train new rows of the head alone")
    warmup_lr: float = Field(0.01, gt=0, description="learning rate of these passes")
    warmup_batch_size: int = Field(32, ge=1, description="samples a step of these passes")
    targets: Literal["normalised", "raw"] = Field(
        "normalised", description="images the old answers are recorded on; raw: bare pixels (reference)"
    )


class LwF(Method):
    net: Classifier
    old: Tensor
    only_old: Tensor
    only_seen: Tensor
    targets: Tensor | None

    def __init__(self, net: nn.Module, problem: Problem, config: LwFConfig | None = None) -> None:
        super().__init__()
        self.net, self.config = with_features(net, "lwf", problem.num_classes), config or LwFConfig()
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.draws = SavedGenerator(problem.generator("warm-up"))
        no_class = torch.zeros(problem.num_classes, dtype=torch.bool)
        self.register_buffer("old", no_class)  # (C,) classes of finished tasks
        # Both (C,), made once a task: to be added to logits. All classes are open while no task has begun.
        self.register_buffer("only_old", only(no_class))
        self.register_buffer("only_seen", only(~no_class))
        self.register_buffer("targets", None)  # (N, C) old answers, softened, one row a training image

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        config = self.config
        logits = self.net(batch.inputs)
        terms = {"current": cross_entropy(logits + self.only_seen, batch.labels)}
        if self.targets is not None and config.alpha:
            wanted = self.targets.index_select(0, batch.rows)
            terms["distillation"] = distill(logits, wanted, self.only_old, config.temperature, config.alpha)
        return descend(optimizer, terms, config.l2)

    def begin_task(self, task: Task) -> Task:
        if self.old.any():
            self.warm_up(task)
            view = self.plain_view if self.config.targets == "normalised" else to_unit
            self.only_old.copy_(only(self.old))
            logits = predict_all(self.net, task.train.inputs, view)
            self.targets = soften(logits, self.only_old, self.config.temperature)
        seen = self.old.clone()
        seen[list(task.classes)] = True
        self.only_seen.copy_(only(seen))
        return task

    def warm_up(self, task: Task) -> None:
        """Train the head's rows of new classes on fixed features; everything else stays to the bit."""
        head, columns = self.net.head, [label for label in task.classes if not self.old[label]]
        train = task.train.to(head.weight.device)
        place = torch.full_like(self.old, -1, dtype=torch.int64)  # (C,) label -> row trained here
        place[columns] = torch.arange(len(columns), device=place.device)
        rows = torch.nonzero(place[train.labels] >= 0).flatten()
        if len(rows) == 0:
            return
        new_rows = [parameter.detach()[columns].requires_grad_() for parameter in head.parameters()]
        optimizer = torch.optim.SGD(new_rows, lr=self.config.warmup_lr)
        with evaluation_mode(self.net):
            for _ in range(self.config.warmup_epochs):
                order = rows[torch.randperm(len(rows), generator=self.draws.generator).to(rows.device)]
                for chosen in order.split(self.config.warmup_batch_size):
                    with torch.no_grad():
                        features = self.net.features(self.view(train.inputs[chosen]))
                    loss = cross_entropy(linear(features, *new_rows), place[train.labels[chosen]])
                    descend(optimizer, {"warm-up": loss})
        with torch.no_grad():
            for parameter, trained in zip(head.parameters(), new_rows, strict=True):
                parameter[columns] = trained

    def end_task(self, task: Task) -> None:
        self.old[list(task.classes)] = True
        self.targets = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        allocate_buffers(self, state_dict, prefix, "targets")
        super()._load_from_state_dict(state_dict, prefix, *args)


def only(columns: Tensor) -> Tensor:
    """Zero in the columns, and elsewhere so low that a softmax after adding it is zero there.

    Finite, so that zero times its logarithm is zero; an addition is also half the work of a masked fill.
    """
    return torch.zeros_like(columns, dtype=torch.float32).masked_fill_(~columns, LOWEST)


def soften(logits: Tensor, mask: Tensor, temperature: float) -> Tensor:
    return torch.add(mask, logits, alpha=1 / temperature).softmax(1)


def distill(logits: Tensor, wanted: Tensor, mask: Tensor, temperature: float, weight: float = 1) -> Tensor:
    """Weighted cross-entropy of softened answers with the wanted ones, averaged over the batch."""
    # As one product: PyTorch's cross-entropy with probabilities takes half as long again.
    answers = log_softmax(torch.add(mask, logits, alpha=1 / temperature), 1)
    return torch.dot(answers.view(-1), wanted.view(-1)) * (-weight / len(wanted))


def to_unit(images: Tensor) -> Tensor:
    return images if images.is_floating_point() else images.float() / 255
