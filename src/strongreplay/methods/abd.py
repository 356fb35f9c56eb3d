"""Always Be Dreaming (ABD).

Paper: Smith et al., "Always Be Dreaming: A New Approach for Data-Free Class-Incremental Learning", 2021,
https://arxiv.org/abs/2106.09701
No data is kept. When a task ends, a small generator is trained to invert the classifier: its images get
confident and varied predictions, and match the running statistics of the batch-norm layers. In the next
task, real images train the net on the new classes alone; real and generated images together train only the
head; and features of both stay close to the old ones in the directions that the old head uses. So features
do not learn to separate old from new classes by whether an image is generated or real.
Differences from the reference (the authors' code): the head is trained on features of the same forward pass,
so batch-norm statistics change once a step; weights are those of a sample's class for any number of classes;
the generator has no biases in front of batch norm. A net without batch norm is inverted without their term.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.errors import ConfigError
from strongreplay.methods.abd_parts import ImageGenerator, balance, recorded_statistics, roughness
from strongreplay.methods.base import (
    MAIN,
    MethodConfig,
    OldNet,
    Phase,
    Problem,
    SavedGenerator,
    descend,
    evaluation_mode,
)
from strongreplay.methods.distillation import only, register_masks, seen_classes
from strongreplay.methods.image_generators import GeneratesImages
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Task, Terms


class ABDConfig(MethodConfig):
    distance: float = Field(0.1, ge=0, description="mu: weight of the distance to the old features")
    generator_steps: int = Field(10, ge=0, description="steps of the generator after each task but the last")
    generator_batch_size: int = Field(32, ge=2, description="images of each of these steps")
    generator_lr: float = Field(1e-3, gt=0, description="learning rate of these steps (Adam)")
    generator_width: int = Field(128, ge=2, description="channels of the generator's first layer")
    code_size: int = Field(1000, ge=1, description="dimensions of the generator's code")
    sharpness: float = Field(1000.0, gt=0, description="divides the logits of generated images")
    statistics: float = Field(50.0, ge=0, description="weight of the distance to batch-norm statistics")
    smoothness: float = Field(1e-3, ge=0, description="weight of the distance to blurred images")


class ABD(GeneratesImages):
    net: Classifier
    old: Tensor
    only_old: Tensor
    only_new: Tensor
    only_seen: Tensor
    class_weights: Tensor
    generator: ImageGenerator

    def __init__(self, net: nn.Module, problem: Problem, config: ABDConfig | None = None) -> None:
        super().__init__()
        self.net, self.config = with_features(net, "abd", problem.num_classes), config or ABDConfig()
        self.old_net, self.num_tasks = OldNet(self.net), problem.num_tasks
        self.draws = SavedGenerator(problem.generator("dreams"))
        self.adam: Optimizer | None = None  # of the generator, in this task
        self.adam_state: dict[str, Any] | None = None  # at the end of the last one
        register_masks(self, problem.num_classes, "only_old", "only_new", "only_seen")
        self.register_buffer("class_weights", torch.ones(problem.num_classes))
        self.register_shape()

    def begin_task(self, task: Task) -> Task:
        images = task.train.inputs
        if images.dim() != 4 or min(images.shape[2:]) < 3:
            raise ConfigError(f"abd needs images (N, C, H, W) of at least 3 x 3, got {tuple(images.shape)}")
        self.ensure_generator(images.shape[1:])
        seen = seen_classes(self.old, task)
        self.only_seen.copy_(only(seen))
        self.only_new.copy_(only(seen & ~self.old))
        if self.old.any():
            self.only_old.copy_(only(self.old))
            self.class_weights.copy_(weigh(self.old, seen))
        return task

    def make_generator(self, shape: tuple[int, ...]) -> None:
        config = self.config
        made = ImageGenerator(shape, config.code_size, config.generator_width)
        self.generator = made.to(self.class_weights.device, self.class_weights.dtype)

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        if not self.old_net.exists:
            logits = self.net(batch.inputs) + self.only_seen
            return descend(optimizer, {"current": cross_entropy(logits, batch.labels)})
        inputs, labels = self.with_dreams(batch)
        old: Any = self.old_net.copy
        features = self.net.features(inputs)
        with torch.no_grad():
            old_features = old.features(inputs)
        new = self.net.head(features[: len(batch)]) + self.only_new
        seen = self.net.head(features.detach()) + self.only_seen
        terms = {
            "current": self.weighted(new, batch.labels),
            "head": self.weighted(seen, labels),
            "distance": self.config.distance
            * head_distance(features, old_features, old.head.weight, self.old),
        }
        return descend(optimizer, terms)

    def with_dreams(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The batch followed by as many generated images, with the old net's answers as labels."""
        with torch.no_grad(), evaluation_mode(self.generator):
            images = self.generator(self.noise(len(batch)))
        labels = (self.old_net(images) + self.only_old).argmax(1)
        return torch.cat([batch.inputs, images]), torch.cat([batch.labels, labels])

    def weighted(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, each sample times the weight of its class; then a plain mean."""
        return (self.class_weights[labels] * cross_entropy(logits, labels, reduction="none")).mean()

    def noise(self, count: int) -> Tensor:
        return self.draw_codes(count, self.config.code_size).to(self.class_weights)

    def phases(self, task: Task) -> list[Phase]:
        """After each task but the last, the generator is trained."""
        config, found = self.config, [Phase(MAIN, None, self.observe)]
        if config.generator_steps and task.index < self.num_tasks - 1:
            phase = Phase.of_steps("generator", lambda: config.generator_steps, self.dream, self.old_net.take)
            found.append(replace(phase, parameters=self.generator.parameters, optimizer=self.make_adam))
        return found

    def make_adam(self, parameters: Iterable[Any]) -> Optimizer:
        """The generator's optimiser, which goes on from task to task."""
        self.adam = torch.optim.Adam(parameters, lr=self.config.generator_lr)
        if self.adam_state:
            self.adam.load_state_dict(deepcopy(self.adam_state))
        return self.adam

    def dream(self, batch: Batch, optimizer: Optimizer) -> Terms:
        """A step of the generator; the batch is empty."""
        config, old = self.config, self.old_net.copy
        assert old is not None
        images = self.generator(self.noise(config.generator_batch_size))
        with recorded_statistics(old) as distances:
            logits = old(images)
        answers = (logits + self.only_seen).argmax(1)
        terms = {
            "content": cross_entropy(logits / config.sharpness + self.only_seen, answers),
            "balance": balance(logits + self.only_seen, self.only_seen == 0),
            "smoothness": config.smoothness * roughness(images),
        }
        if distances:
            terms["statistics"] = config.statistics * torch.stack(distances).mean()
        return descend(optimizer, terms)

    def end_task(self, task: Task) -> None:
        self.old_net.take()
        self.old[list(task.classes)] = True
        if self.adam:
            self.adam_state, self.adam = self.adam.state_dict(), None

    def get_extra_state(self) -> dict[str, Any] | None:
        return self.adam_state

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        self.adam_state = state


def weigh(old: Tensor, seen: Tensor) -> Tensor:
    """(C,) the share of old classes among seen ones for old classes, the rest for new ones."""
    share = old.sum() / seen.sum()
    return torch.where(old, share, 1 - share)


def head_distance(features: Tensor, old_features: Tensor, weight: Tensor, old: Tensor) -> Tensor:
    """Squared differences of features in the directions of the old head's rows, mean over old classes."""
    differences = (features - old_features) @ weight.detach().t()
    return (differences.square() * old).sum() / (len(features) * old.sum())
