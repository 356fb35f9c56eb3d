"""Learning to Prompt (L2P).

Paper: Wang et al., "Learning to Prompt for Continual Learning", 2022, https://arxiv.org/abs/2112.08654
The net is a ViT with pretrained weights, which stay as they are. A pool of prompts is learnt, each with a
key. The feature of an image without prompts is its query; the prompts whose keys are most similar to it are
put before the image's tokens, and the mean of their outputs is the feature that the head gets. Nothing is
kept of the data.
Differences from the reference (the authors' code): each image chooses its own prompts. There the batch votes
(`vote="always"`), so that an answer depends on the other images; `vote="training"` votes in training alone.
A widely used port places the prompts after the class token and gives them its position; the order of tokens
makes no difference, so `place="port"` adds the position alone.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from strongreplay.errors import ConfigError
from strongreplay.methods.base import Method, MethodConfig, Problem, descend
from strongreplay.methods.prompts import PromptedNet, TaskColumns, cosines, draw, nearest, vote
from strongreplay.protocol import Batch, Task, Terms


class L2PConfig(MethodConfig):
    pool_size: int = Field(10, ge=1, description="prompts in the pool")
    length: int = Field(10, ge=1, description="tokens of a prompt")
    top: int = Field(4, ge=1, description="prompts chosen for an image")
    pull: float = Field(1.0, ge=0, description="weight of the similarity of queries and chosen keys")
    vote: Literal["never", "training", "always"] = Field(
        "never", description="when a batch votes for its prompts, in place of each image by itself"
    )
    place: Literal["official", "port"] = Field(
        "official", description="port: prompts get the position of the class token"
    )


class L2PNet(PromptedNet):
    def __init__(self, net: nn.Module, config: L2PConfig, generator: torch.Generator) -> None:
        super().__init__(net, "l2p")
        self.config, width = config, self.body.form.width
        self.prompts = nn.Parameter(draw(generator, config.pool_size, config.length, width))  # (N, L, D)
        self.keys = nn.Parameter(draw(generator, config.pool_size, width))  # (N, D)

    def choose(self, inputs: Tensor, votes: bool) -> tuple[Tensor, Tensor]:
        """(B, k) numbers of the chosen prompts, and (B, k) the similarities of their keys."""
        similarities = cosines(self.queries(inputs), self.keys)
        picks = nearest(similarities.detach(), self.config.top)
        picks = vote(picks, len(self.keys)) if votes else picks
        return picks, similarities.gather(1, picks)

    def prompted(self, inputs: Tensor, picks: Tensor) -> Tensor:
        """(B, D) features with these prompts."""
        prompts = self.prompts[picks].flatten(1, 2)
        if self.config.place == "port":
            prompts = prompts + self.body.class_position()
        features: Tensor = self.body(inputs, prompts)
        return features

    def features(self, inputs: Tensor) -> Tensor:
        return self.prompted(inputs, self.choose(inputs, self.config.vote == "always")[0])


class L2P(Method):
    net: L2PNet

    def __init__(self, net: nn.Module, problem: Problem, config: L2PConfig | None = None) -> None:
        super().__init__()
        self.config = config or L2PConfig()
        if self.config.top > self.config.pool_size:
            raise ConfigError(
                f"l2p chooses method.top of method.pool_size prompts, got {self.config.top} of "
                f"{self.config.pool_size}"
            )
        self.net = L2PNet(net, self.config, problem.generator("prompts"))
        self.columns = TaskColumns(self.net.head.out_features)

    def begin_task(self, task: Task) -> Task:
        self.columns.begin(task, "l2p")
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        picks, similarities = self.net.choose(batch.inputs, self.config.vote != "never")
        logits = self.net.head(self.net.prompted(batch.inputs, picks))
        terms = {
            "current": self.columns.loss(logits, batch.labels),
            "pull": -self.config.pull * similarities.sum(1).mean(),
        }
        return descend(optimizer, terms)

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        self.columns.grow(num_classes)
