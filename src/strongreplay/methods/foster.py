"""Feature Boosting and Compression (FOSTER).

Paper: Wang et al., "FOSTER: Feature Boosting and Compression for Class-Incremental Learning", 2022,
https://arxiv.org/abs/2204.04662
From the second task on there are two phases. Boosting trains a new extractor, a copy of the old one, beside
the frozen old net: one head on both features, one on the new features alone, and distillation of the old
net's answers. Compression then trains one net, starting from the old one, on the answers of both. Old
classes, of which few samples are left, get more weight in both. Exemplars are herded.
Differences from the reference (the authors' code): the compressed net predicts, so its size is constant
(`eval_net="boosted"`: both, as in the published curves); the record has the scores of each. The boosted net
is kept for this until the next task begins. Class counts below 1 are taken as 1.
"""

from copy import deepcopy
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import (
    MAIN,
    Method,
    MethodConfig,
    Phase,
    Problem,
    SavedGenerator,
    check_one_a_class,
    descend,
)
from strongreplay.methods.distillation import distill, only, register_masks, seen_classes, soften
from strongreplay.methods.exemplars import herd_exemplars, join_exemplars, unit_features
from strongreplay.methods.expansion import add_missing, reset_module
from strongreplay.methods.foster_parts import (
    BoostedNet,
    FosterNet,
    class_weights,
    cosine_rate,
    reweighted,
)
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import with_features
from strongreplay.protocol import Batch, Task, Terms


class FOSTERConfig(MethodConfig):
    memory_size: int = Field(200, ge=1, description="exemplars kept, shared equally by all seen classes")
    boost_beta: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = Field(
        (0.97,), min_length=1, description="beta of class weights in boosting by task; the last one stays"
    )
    compress_beta: float = Field(0.97, ge=0, lt=1, description="beta of class weights in compression")
    distillation: float = Field(1.0, ge=0, description="weight of the distance to the old net's answers")
    temperature: float = Field(2.0, gt=0, description="temperature of both distillations")
    compress_epochs: int = Field(20, ge=0, description="epochs of the compression")
    compress_lr: float = Field(0.1, gt=0, description="learning rate of the compression, falls as a cosine")
    eval_net: Literal["compressed", "boosted"] = Field("compressed", description="the net that predicts")


class FOSTER(Method):
    net: FosterNet
    old: Tensor
    only_old: Tensor
    only_seen: Tensor
    divisors: Tensor
    factors: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: FOSTERConfig | None = None) -> None:
        super().__init__()
        self.config = config or FOSTERConfig()
        check_one_a_class("foster", self.config.memory_size, problem)
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.net = FosterNet(with_features(net, "foster", problem.num_classes))
        self.boosted = BoostedNet(self.net)
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        self.draws = SavedGenerator(problem.generator("heads"))
        register_masks(self, problem.num_classes, "only_old", "only_seen")
        self.register_buffer("divisors", torch.ones(problem.num_classes))  # of logits, in boosting
        self.register_buffer("factors", torch.ones(problem.num_classes))  # of targets, in compression

    def begin_task(self, task: Task) -> Task:
        self.only_seen.copy_(only(seen_classes(self.old, task)))
        if self.old.any():
            self.only_old.copy_(only(self.old))
            self.weigh_classes(task)
            self.begin_boosting()
        return join_exemplars(task, self.memory)

    def weigh_classes(self, task: Task) -> None:
        config, old = self.config, self.old.cpu()
        counts = task.train.labels.cpu().bincount(minlength=len(old)).double()
        counts[old] = self.memory.capacity // int(old.sum())
        known = (self.only_seen == 0).cpu()
        beta = config.boost_beta[min(max(task.index, 1), len(config.boost_beta)) - 1]
        for buffer, base in ((self.divisors, beta), (self.factors, config.compress_beta)):
            weights = torch.ones(len(old), dtype=torch.float64)
            weights[known] = class_weights(counts[known], base)
            buffer.copy_(weights)

    @torch.no_grad()
    def begin_boosting(self) -> None:
        """The new extractor starts as the old one; old rows of the joint head are those of the old head."""
        self.boosted.old.take()
        self.boosted.new.copy = None
        head, wide = self.net.live.head, self.net.widen()
        reset_module(wide, self.draws.generator)
        wide.weight[self.old, : head.in_features] = head.weight[self.old]
        wide.bias[self.old] = head.bias[self.old]
        reset_module(head, self.draws.generator)

    def phases(self, task: Task) -> list[Phase]:
        """From the second task on, boosting is followed by compression."""
        config, found = self.config, [Phase(MAIN, None, self.observe)]
        if self.old.any() and config.compress_epochs:
            compression = Phase(
                "compression",
                config.compress_epochs,
                self.compress,
                data=task.train,
                parameters=lambda: list(self.net.live.parameters()),
                optimizer=partial(torch.optim.SGD, lr=config.compress_lr, momentum=0.9),
                rate=partial(cosine_rate, config.compress_lr, config.compress_epochs),
                view=self.view,
                begin=self.begin_compression,
            )
            found.append(compression)
        return found

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """A step of boosting, or of plain training in the first task."""
        add_missing(optimizer, self.net)
        net, wide = self.net.live, self.net.wide
        if wide is None:
            loss = cross_entropy(net(batch.inputs) + self.only_seen, batch.labels)
            return descend(optimizer, {"current": loss})
        config, old = self.config, self.boosted.old_features(batch.inputs)
        new = net.features(batch.inputs)
        logits = wide(torch.cat([old, new], 1))
        terms = {
            "current": cross_entropy(logits / self.divisors + self.only_seen, batch.labels),
            "new": cross_entropy(net.head(new) + self.only_seen, batch.labels),
        }
        if config.distillation:
            wanted = soften(self.old_head(old), self.only_old, config.temperature)
            terms["distillation"] = distill(
                logits, wanted, self.only_old, config.temperature, config.distillation
            )
        return descend(optimizer, terms)

    @torch.no_grad()
    def old_head(self, features: Tensor) -> Tensor:
        old: Any = self.boosted.old.copy
        logits: Tensor = old.head(features)
        return logits

    @torch.no_grad()
    def begin_compression(self) -> None:
        """Keep the boosted net; the net is the old one again, with fresh rows for new classes."""
        self.boosted.new.take()
        self.net.wide = None
        live, old, fresh = self.net.live, self.boosted.old.copy, deepcopy(self.net.live.head)
        assert old is not None
        live.load_state_dict(old.state_dict())
        reset_module(fresh, self.draws.generator)
        for mine, drawn in ((live.head.weight, fresh.weight), (live.head.bias, fresh.bias)):
            mine[~self.old] = drawn[~self.old]

    def compress(self, batch: Batch, optimizer: Optimizer) -> Terms:
        temperature = self.config.temperature
        wanted = reweighted(soften(self.boosted(batch.inputs), self.only_seen, temperature), self.factors)
        loss = distill(self.net.live(batch.inputs), wanted, self.only_seen, temperature)
        return descend(optimizer, {"compression": loss})

    def end_task(self, task: Task) -> None:
        self.old[list(task.classes)] = True
        features = unit_features(self.net, self.plain_view, self.net.live.features)
        herd_exemplars(self.memory, task, int(self.old.sum()), features, self.old.device)

    def answering_net(self) -> nn.Module:
        return self.predictors()[self.config.eval_net]

    def predictors(self) -> dict[str, nn.Module]:
        return {"compressed": self.net, "boosted": self.boosted}
