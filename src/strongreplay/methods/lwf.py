"""Learning without Forgetting (LwF).

Paper: Li and Hoiem, "Learning without Forgetting", 2016, https://arxiv.org/abs/1606.09282
Reference: mammoth, tag neurips2020, which gave the published numbers: no T^2 in front of the distillation,
and a squared-weight term that is not halved.
Differences from the reference: targets are computed on normalised images, like those in training; the
reference uses unnormalised pixels (`targets="raw"`). The temperature is a setting, not always 2.
"""

from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.optim import Optimizer

from strongreplay.methods.base import (
    MAIN,
    Method,
    MethodConfig,
    Phase,
    Problem,
    SavedGenerator,
    descend,
    evaluation_mode,
    predict_all,
)
from strongreplay.methods.distillation import distill, only, register_masks, seen_classes, soften
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Split, Task, Terms


class LwFConfig(MethodConfig):
    alpha: float = Field(1.0, ge=0, description="weight of the distillation")
    temperature: float = Field(2.0, gt=0, description="temperature of the distillation")
    l2: float = Field(5e-4, ge=0, description="weight of the sum of squared weights")
    warmup_epochs: int = Field(1, ge=0, description="epochs that train only the new rows of the head")
    warmup_lr: float = Field(0.01, gt=0, description="learning rate of these epochs")
    warmup_batch_size: int = Field(32, ge=1, description="batch size of these epochs")
    targets: Literal["normalised", "raw"] = Field(
        "normalised", description="images the targets are computed on; raw: unnormalised (reference)"
    )


class LwF(Method):
    resized_buffers = ("targets", "new_weight", "new_bias")
    net: Classifier
    old: Tensor
    only_old: Tensor
    only_seen: Tensor
    targets: Tensor | None
    new_weight: Tensor | None
    new_bias: Tensor | None

    def __init__(self, net: nn.Module, problem: Problem, config: LwFConfig | None = None) -> None:
        super().__init__()
        self.net, self.config = with_features(net, "lwf", problem.num_classes), config or LwFConfig()
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.draws = SavedGenerator(problem.generator("warm-up"))
        register_masks(self, problem.num_classes, "only_old", "only_seen")
        self.register_buffer("targets", None)  # (N, C) softened old outputs, one row per training image
        # The head's rows of new classes, while the warm-up trains them.
        self.register_buffer("new_weight", None)
        self.register_buffer("new_bias", None)

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        config = self.config
        logits = self.net(batch.inputs)
        terms = {"current": cross_entropy(logits + self.only_seen, batch.labels)}
        if self.targets is not None and config.alpha:
            wanted = self.targets.index_select(0, batch.rows)
            terms["distillation"] = distill(logits, wanted, self.only_old, config.temperature, config.alpha)
        return descend(optimizer, terms, config.l2)

    def phases(self, task: Task) -> list[Phase]:
        """From the second task on, a warm-up first trains only the head's rows of new classes."""
        config, columns = self.config, self.new_columns(task)
        main = Phase(MAIN, None, self.observe, begin=partial(self.record_targets, task))
        if not (columns and self.old.any()):
            return [main]
        warm_up = Phase(
            "warm-up",
            config.warmup_epochs,
            self.warm_up,
            data=partial(self.new_samples, task),
            parameters=self.new_rows,
            optimizer=partial(torch.optim.SGD, lr=config.warmup_lr),
            batch_size=config.warmup_batch_size,
            view=self.view,
            generator=self.draws.generator,
            begin=partial(self.take_rows, columns),
        )
        return [warm_up, main]

    def new_columns(self, task: Task) -> list[int]:
        return [label for label in task.classes if not self.old[label]]

    def take_rows(self, columns: list[int]) -> None:
        head = self.net.head
        self.new_weight = head.weight.detach()[columns]
        self.new_bias = None if head.bias is None else head.bias.detach()[columns]

    def new_rows(self) -> list[Tensor]:
        return [rows for rows in (self.new_weight, self.new_bias) if rows is not None]

    def new_samples(self, task: Task) -> Split:
        """Samples of new classes; a label is the index of its class among the new ones."""
        columns = self.new_columns(task)
        place = torch.full((len(self.old),), -1)  # (C,) label -> row trained here
        place[columns] = torch.arange(len(columns))
        labels = place[task.train.labels.cpu()]
        rows = torch.nonzero(labels >= 0).flatten()
        return Split(task.train.inputs[rows.to(task.train.inputs.device)], labels[rows])

    def warm_up(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """Train the head's rows of new classes on fixed features; nothing else changes."""
        assert self.new_weight is not None
        with torch.no_grad(), evaluation_mode(self.net):
            features = self.net.features(batch.inputs)
        logits = linear(features, self.new_weight, self.new_bias)
        return descend(optimizer, {"warm-up": cross_entropy(logits, batch.labels)})

    @torch.no_grad()
    def record_targets(self, task: Task) -> None:
        """Copy the trained rows into the head, and compute the targets of the distillation."""
        if self.new_weight is not None:
            columns = self.new_columns(task)
            self.net.head.weight[columns] = self.new_weight
            if self.new_bias is not None:
                self.net.head.bias[columns] = self.new_bias
            self.new_weight = self.new_bias = None
        if self.old.any():
            view = self.plain_view if self.config.targets == "normalised" else to_unit
            self.only_old.copy_(only(self.old))
            logits = predict_all(self.net, task.train.inputs, view)
            self.targets = soften(logits, self.only_old, self.config.temperature)
        self.only_seen.copy_(only(seen_classes(self.old, task)))

    def end_task(self, task: Task) -> None:
        self.old[list(task.classes)] = True
        self.targets = None


def to_unit(images: Tensor) -> Tensor:
    return images if images.is_floating_point() else images.float() / 255
