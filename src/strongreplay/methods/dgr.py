"""Deep Generative Replay (DGR). Another method of that name, Gradient Reweighting (2024), is not this one.

Paper: Shin et al., "Continual Learning with Deep Generative Replay", 2017, https://arxiv.org/abs/1705.08690
No images are kept. A generator is trained beside the classifier; copies of both, taken when a task ends,
supply images and labels of all tasks before. Both learn the task's samples with weight 1 / t in the t-th
task, and the generated ones with the rest.
The generator is a variational autoencoder of plain layers, as in van de Ven's comparisons; the paper's is a
GAN. It learns images as stored, in [0, 1]; generated images are rounded to uint8 for the net, as the stream
stores images, which is our choice, and pass through the stream's view. Both nets have one optimiser, which is
that of the run: with Adam it acts as two.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.optim import Optimizer

from strongreplay.data.views import scale
from strongreplay.errors import ConfigError
from strongreplay.methods.base import (
    MAIN,
    MethodConfig,
    OldNet,
    Phase,
    Problem,
    SavedGenerator,
    descend,
)
from strongreplay.methods.distillation import distill, only, register_masks, seen_classes, soften
from strongreplay.methods.expansion import add_missing
from strongreplay.methods.image_generators import GeneratesImages
from strongreplay.protocol import Batch, Task, Terms

TEMPERATURE = 2.0


class DGRConfig(MethodConfig):
    targets: Literal["hard", "soft"] = Field("hard", description="labels of generated images, or answers")
    hidden_size: int = Field(400, ge=1, description="units of the generator's two hidden layers")
    code_size: int = Field(100, ge=1, description="dimensions of the generator's code")


class VAE(nn.Module):
    """A variational autoencoder of images with values in [0, 1], made when their shape is known."""

    def __init__(self, shape: tuple[int, ...], hidden: int, code: int) -> None:
        super().__init__()
        self.shape, size = shape, int(torch.Size(shape).numel())
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.mean, self.logvar = nn.Linear(hidden, code), nn.Linear(hidden, code)
        self.decoder = nn.Sequential(
            nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, size)
        )

    def loss(self, images: Tensor, noise: Tensor) -> Tensor:
        """Reconstruction and divergence from the prior, summed, per pixel; the mean over images."""
        hidden = self.encoder(images)
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        found = self.decoder(mean + (logvar / 2).exp() * noise)
        pixels = images.flatten(1)
        if self.shape[0] == 1:
            wrong = binary_cross_entropy_with_logits(found, pixels, reduction="sum")
        else:
            wrong = mse_loss(found.sigmoid(), pixels, reduction="sum")
        loss: Tensor = (wrong + divergence(mean, logvar).sum()) / pixels.numel()
        return loss

    def forward(self, code: Tensor) -> Tensor:
        """Images of the codes."""
        pixels: Tensor = self.decoder(code).sigmoid()
        return pixels.view(-1, *self.shape)


class DGR(GeneratesImages):
    only_old: Tensor
    only_seen: Tensor
    share: Tensor
    old: Tensor
    generator: VAE
    old_generator: OldNet

    def __init__(self, net: nn.Module, problem: Problem, config: DGRConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or DGRConfig(), problem.train_view
        self.old_net = OldNet(net)
        self.draws = SavedGenerator(problem.generator("generated"))
        register_masks(self, problem.num_classes, "only_old", "only_seen")
        self.register_buffer("share", torch.ones(()))  # weight of the task's own samples
        self.register_shape()

    def begin_task(self, task: Task) -> Task:
        images = task.train.inputs
        if images.dim() != 4:
            raise ConfigError(f"dgr generates images (N, C, H, W), got {tuple(images.shape)}")
        self.ensure_generator(images.shape[1:])
        self.only_seen.copy_(only(seen_classes(self.old, task)))
        return task

    def make_generator(self, shape: tuple[int, ...]) -> None:
        self.generator = VAE(shape, self.config.hidden_size, self.config.code_size).to(self.shape.device)
        self.old_generator = OldNet(self.generator)

    def phases(self, task: Task) -> list[Phase]:
        both = [*self.net.parameters(), *self.generator.parameters()]
        return [Phase(MAIN, None, self.observe, parameters=both)]

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        if not hasattr(self, "generator"):  # a step without a task
            self.ensure_generator(batch.images.shape[1:])
        add_missing(optimizer, self.generator)
        real = cross_entropy(self.net(batch.inputs) + self.only_seen, batch.labels)
        terms = {"current": real, "generator": self.generator_loss(scale(batch.images))}
        if self.old_net.exists:
            terms = {name: self.share * term for name, term in terms.items()}
            images = self.generate(len(batch))
            terms["replay"] = (1 - self.share) * self.replay_loss(images)
            terms["generator replay"] = (1 - self.share) * self.generator_loss(images)
        return descend(optimizer, terms)

    def generator_loss(self, images: Tensor) -> Tensor:
        return self.generator.loss(images, self.noise(len(images)))

    def noise(self, count: int) -> Tensor:
        return self.draw_codes(count, self.config.code_size)

    def generate(self, count: int) -> Tensor:
        """Images of earlier tasks, in [0, 1]."""
        images: Tensor = self.old_generator(self.noise(count))
        return images

    def replay_loss(self, images: Tensor) -> Tensor:
        """Cross-entropy with the old net's answers among old classes."""
        stored = images.mul(255).round_().to(torch.uint8)  # as the stream stores them
        inputs = self.view(stored)
        answers, logits = self.old_net(inputs), self.net(inputs)
        if self.config.targets == "hard":
            return cross_entropy(logits + self.only_seen, (answers + self.only_old).argmax(1))
        wanted = soften(answers, self.only_old, TEMPERATURE)
        return distill(logits, wanted, self.only_seen, TEMPERATURE, TEMPERATURE**2)

    def end_task(self, task: Task) -> None:
        self.old[list(task.classes)] = True
        self.only_old.copy_(only(self.old))
        self.share.copy_(1 / (1 / self.share + 1))
        self.old_net.take()
        self.old_generator.take()


def divergence(mean: Tensor, logvar: Tensor) -> Tensor:
    """KL divergence of N(mean, exp(logvar)) from N(0, 1), for each dimension."""
    return (mean.square() + logvar.exp() - 1 - logvar) / 2
