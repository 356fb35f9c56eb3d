"""Deep Retrieval and Imagination (DRI): a reconstruction. Its code was never released.

Paper: Wang et al., "Continual Learning through Retrieval and Imagination", 2022 (AAAI)
DER++ with a memory that has equally many samples of each class, chosen when a task ends by herding of unit
features, and replayed in equal shares; a metric loss pulls features of a class together; and the answers of
the old net are kept on imagined images.
Our readings, where the paper's text does not suffice: one replayed batch serves both of DER++'s terms; the
metric loss is multi-similarity on stream and replayed samples together; an imagined image is a mix of two
stored ones of a class, or that of a small generative adversarial net, which is trained on the memory when a
task begins (`generator="gan"`; the paper trains one); all weights.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, mse_loss, normalize
from torch.optim import Optimizer

from strongreplay.data.views import scale
from strongreplay.errors import ConfigError
from strongreplay.memory import Memory
from strongreplay.methods.base import (
    MAIN,
    OldNet,
    Phase,
    Problem,
    ReplayConfig,
    SavedGenerator,
    check_one_a_class,
    descend,
    predict_all,
    replay_count,
)
from strongreplay.methods.dri_parts import CODE_SIZE, ClassGAN, multi_similarity
from strongreplay.methods.exemplars import herd_exemplars, unit_features
from strongreplay.methods.image_generators import GeneratesImages
from strongreplay.methods.samples import LogitSamples
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Split, Task, Terms

GAN_STEPS, GAN_BATCH = 1000, 64


class DRIConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept, shared equally by all seen classes")
    alpha: float = Field(0.1, ge=0, description="weight of the distance to stored logits")
    beta: float = Field(0.5, ge=0, description="weight of the loss on replayed labels")
    metric: float = Field(0.1, ge=0, description="weight of the metric loss")
    imagination: float = Field(0.1, ge=0, description="weight of the divergence on imagined images")
    generator: Literal["none", "mix", "gan"] = Field(
        "mix", description="imagined images: none, mixes of two stored ones of a class, or of a trained net"
    )
    gan_steps: int | None = Field(
        None, ge=1, description="steps of the gan before each task but the first; none: 1000"
    )


class DRI(GeneratesImages):
    net: Classifier
    seen: Tensor
    gan: ClassGAN

    def __init__(self, net: nn.Module, problem: Problem, config: DRIConfig | None = None) -> None:
        super().__init__()
        self.config = config or DRIConfig()
        check_one_a_class("dri", self.config.memory_size, problem)
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.net = with_features(net, "dri", problem.num_classes)
        self.old_net = OldNet(self.net)
        # Logits: as the net answered when the sample's task ended
        self.memory = Memory(LogitSamples, self.config.memory_size, problem.generator("memory"))
        self.counts: list[int] = []  # stored samples of each class, in the memory's order
        self.draws = SavedGenerator(problem.generator("imagination"))
        self.register_buffer("seen", torch.zeros(problem.num_classes, dtype=torch.bool))
        self.register_shape()

    @property
    def imagines(self) -> bool:
        return self.config.generator != "none" and self.config.imagination > 0

    @property
    def has_gan(self) -> bool:
        return self.imagines and self.config.generator == "gan"

    def begin_task(self, task: Task) -> Task:
        images = task.train.inputs
        if self.has_gan and not self.shape.any():
            if images.dim() != 4 or images.is_floating_point():
                raise ConfigError(
                    f"dri's gan makes images (N, C, H, W), got {images.dtype} {[*images.shape]}"
                )
            self.ensure_generator(images.shape[1:])
        return task

    def make_generator(self, shape: tuple[int, ...]) -> None:
        self.gan = ClassGAN(shape, len(self.seen)).to(self.seen.device)

    def phases(self, task: Task) -> list[Phase]:
        """A GAN, if there is one, is trained first, on the memory after the last task."""
        found = [Phase(MAIN, None, self.observe)]
        if self.has_gan and self.counts:
            phase = Phase.of_steps("gan", lambda: self.config.gan_steps or GAN_STEPS, self.train_gan)
            adam = partial(torch.optim.Adam, lr=1e-3, betas=(0.5, 0.999))
            found.insert(0, replace(phase, parameters=self.gan.parameters, optimizer=adam))
        return found

    def train_gan(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """A step of the GAN on stored images; the batch is empty."""
        (rows,) = self.draw(GAN_BATCH, 1)
        images, labels, _ = self.memory.take(rows)
        return descend(optimizer, self.gan.losses(scale(images), labels, self.codes(GAN_BATCH)))

    def codes(self, count: int) -> Tensor:
        return self.draw_codes(count, CODE_SIZE)

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
        """Inputs that are mixes of two stored images of one class, or images of the gan."""
        if self.has_gan:
            (rows,) = self.draw(count, 1)
            with torch.no_grad():
                images = self.gan(self.codes(count), self.memory.take(rows).labels)
            return self.view(images.mul(255).round_().to(torch.uint8))  # as the stream stores them
        first, second = (self.view(self.memory.take(rows).images) for rows in self.draw(count, 2))
        shares = torch.rand(count, generator=self.memory.generator).to(first)
        return torch.lerp(second, first, shares.view(-1, *[1] * (first.dim() - 1)))

    def end_task(self, task: Task) -> None:
        self.seen[list(task.classes)] = True

        def sample(chosen: Split) -> LogitSamples:
            logits = predict_all(self.net, chosen.inputs, self.plain_view)
            return LogitSamples(chosen.inputs, chosen.labels, logits)

        features = unit_features(self.net, self.plain_view, self.net.features)
        herd_exemplars(self.memory, task, int(self.seen.sum()), features, self.seen.device, sample)
        self.counts = self.memory.rows.labels.cpu().unique_consecutive(return_counts=True)[1].tolist()
        if self.imagines:
            self.old_net.take()

    def get_extra_state(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"]


def divergence(old: Tensor, now: Tensor) -> Tensor:
    """KL divergence of the new predictions from the old ones, mean over samples."""
    return kl_div(log_softmax(now, 1), log_softmax(old, 1), reduction="batchmean", log_target=True)
