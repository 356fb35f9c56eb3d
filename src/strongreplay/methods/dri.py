"""Deep Retrieval and Imagination (DRI): a reconstruction. Its code was never released.

Paper: Wang et al., "Continual Learning through Retrieval and Imagination", 2022 (AAAI)
DER++ with a memory that has equally many samples of each class, chosen when a task ends by herding of unit
features, and replayed in equal shares; a metric loss pulls features of a class together; and the answers of
the old net are kept on imagined images.
Our readings, where the paper's text does not suffice: one replayed batch serves both of DER++'s terms; the
metric loss is multi-similarity on stream and replayed samples together; an imagined image is a mix of two
stored ones of a class, where the paper trains a generative adversarial net; all weights.
"""

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, mse_loss, normalize
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import (
    Method,
    OldNet,
    Problem,
    ReplayConfig,
    check_one_a_class,
    descend,
    predict_all,
    replay_count,
)
from strongreplay.methods.exemplars import herd_exemplars, unit_features
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Split, Task, Terms


class Sample(NamedTuple):
    images: Tensor
    labels: Tensor
    logits: Tensor  # (M, C) as the net answered when the sample's task ended


class DRIConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept, shared equally by all seen classes")
    alpha: float = Field(0.1, ge=0, description="weight of the distance to stored logits")
    beta: float = Field(0.5, ge=0, description="weight of the loss on replayed labels")
    metric: float = Field(0.1, ge=0, description="weight of the metric loss")
    imagination: float = Field(0.1, ge=0, description="weight of the divergence on imagined images")
    generator: Literal["none", "mix"] = Field(
        "mix", description="imagined images: none, or mixes of two stored images of a class"
    )


class DRI(Method):
    net: Classifier
    seen: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: DRIConfig | None = None) -> None:
        super().__init__()
        self.config = config or DRIConfig()
        check_one_a_class("dri", self.config.memory_size, problem)
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.net = with_features(net, "dri", problem.num_classes)
        self.old_net = OldNet(self.net)
        self.memory = Memory(Sample, self.config.memory_size, problem.generator("memory"))
        self.counts: list[int] = []  # stored samples of each class, in the memory's order
        self.register_buffer("seen", torch.zeros(problem.num_classes, dtype=torch.bool))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        config = self.config
        features, labels = self.net.features(batch.inputs), batch.labels
        terms = {"current": cross_entropy(self.net.head(features), labels)}
        if self.counts:
            (rows,) = self.draw(replay_count(config, batch), 1)
            stored = self.memory.take(rows)
            replayed = self.net.features(self.view(stored.images))
            logits = self.net.head(replayed)
            terms["logits"] = config.alpha * mse_loss(logits, stored.logits)
            terms["replay"] = config.beta * cross_entropy(logits, stored.labels)
            features, labels = torch.cat([features, replayed]), torch.cat([labels, stored.labels])
        if config.metric:
            terms["metric"] = config.metric * multi_similarity(normalize(features, dim=1), labels)
        if self.old_net.exists:
            images = self.imagine(len(batch))
            found = divergence(self.old_net(images), self.net(images))
            terms["imagination"] = config.imagination * found
        return descend(optimizer, terms)

    def draw(self, count: int, times: int) -> Tensor:
        """(times, count) rows of the memory: a class at random, then its samples."""
        counts, generator = torch.tensor(self.counts), self.memory.generator
        classes = torch.randint(len(counts), (count,), generator=generator)
        draws = torch.rand(times, count, dtype=torch.float64, generator=generator)
        return (counts.cumsum(0) - counts)[classes] + (draws * counts[classes]).long()

    def imagine(self, count: int) -> Tensor:
        """Inputs that are mixes of two stored images of one class."""
        first, second = (self.view(self.memory.take(rows).images) for rows in self.draw(count, 2))
        shares = torch.rand(count, generator=self.memory.generator).to(first.device)
        return torch.lerp(second, first, shares.view(-1, *[1] * (first.dim() - 1)))

    def end_task(self, task: Task) -> None:
        self.seen[list(task.classes)] = True

        def sample(chosen: Split) -> Sample:
            logits = predict_all(self.net, chosen.inputs, self.plain_view)
            return Sample(chosen.inputs, chosen.labels, logits)

        features = unit_features(self.net, self.plain_view, self.net.features)
        herd_exemplars(self.memory, task, int(self.seen.sum()), features, self.seen.device, sample)
        self.counts = self.memory.rows.labels.cpu().unique_consecutive(return_counts=True)[1].tolist()
        if self.config.generator != "none" and self.config.imagination:
            self.old_net.take()

    def get_extra_state(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"]


def multi_similarity(features: Tensor, labels: Tensor) -> Tensor:
    """Multi-similarity loss of unit features (Wang et al. 2019), over pairs that are hard by the margin."""
    alpha, beta, base, margin, far_off = 2, 10, 0.5, 0.1, 4.0  # cosines differ by at most 2
    with torch.no_grad():  # value and slope together: autograd takes far longer; so do masks of booleans
        alike, numbers = features @ features.t(), labels.to(features.dtype)
        apart = (numbers[:, None] - numbers).abs_().sign_()
        same = 1 - apart
        weight = (alike - base).mul_(apart * (alpha + beta) - alpha).exp_()
        # A pair counts if a pair of the other kind is nearly as bad, or if there is none of the other kind.
        worst_apart = alike.sub(same, alpha=far_off).amax(1, keepdim=True)
        worst_apart.masked_fill_(worst_apart < -2, torch.inf)
        worst_same = alike.add(apart, alpha=far_off).fill_diagonal_(torch.inf).amin(1, keepdim=True)
        worst_same.masked_fill_(worst_same > 2, -torch.inf)
        near, far = (worst_apart + margin - alike).sign_(), (alike - (worst_same - margin)).sign_()
        pulled = near.clamp_(min=0).mul_(same).fill_diagonal_(0).mul_(weight)
        pushed = far.clamp_(min=0).mul_(apart).mul_(weight)
        near, far = 1 + pulled.sum(1, keepdim=True), 1 + pushed.sum(1, keepdim=True)
        value = (near.log() / alpha + far.log() / beta).mean()
        slope = pushed.div_(far).sub_(pulled.div_(near)).div_(len(labels))
        slope = (slope + slope.t()) @ features
    return value + torch.dot(slope.view(-1), (features - features.detach()).view(-1))  # adds 0


def divergence(old: Tensor, now: Tensor) -> Tensor:
    """Of the present answers from the old ones, mean over samples."""
    return kl_div(log_softmax(now, 1), log_softmax(old, 1), reduction="batchmean", log_target=True)
