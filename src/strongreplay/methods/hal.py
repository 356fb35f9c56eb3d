"""Hindsight Anchor Learning (HAL).

Paper: Chaudhry et al., "Using Hindsight to Anchor Past Knowledge in Continual Learning", 2021,
https://arxiv.org/abs/2002.08165
Reference: mammoth, tag neurips2020, which gave the published numbers. It names the paper's ring buffer but
uses reservoir sampling, the default here; `memory_policy="ring"` is the paper's.
Differences from the reference: the gradients of both terms are added before one step, so that momentum works;
anchors pass the net in evaluation mode, which leaves running statistics unchanged, and the fine-tuned copy
starts with these; all anchors of a task are learnt at once. In the reference the fine-tuned copy has views of
the weights it is compared with, so that both are fine-tuned: `anchors="reference"`.
"""

from dataclasses import replace
from functools import partial
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer

from strongreplay.memory import Memory, RingMemory
from strongreplay.methods.base import (
    MAIN,
    Method,
    OldNet,
    Phase,
    Problem,
    ReplayConfig,
    descend,
    evaluation_mode,
    replay_count,
    share_of_memory,
)
from strongreplay.methods.gradients import after_step
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Task, Terms


class HALConfig(ReplayConfig):
    penalty: float = Field(
        0.1, ge=0, description="lambda, weight of the change of the anchors' outputs in a step; 0 is ER"
    )
    beta: float = Field(0.5, ge=0, le=1, description="decay of the moving average of features")
    gamma: float = Field(0.1, ge=0, description="weight of an anchor's distance to the mean feature")
    anchor_steps: int = Field(100, ge=0, description="gradient steps that learn a task's anchors")
    anchor_lr: float = Field(0.1, gt=0, description="learning rate of anchors and of the fine-tuned copy")
    finetune_steps: int = Field(1, ge=0, description="steps on the memory that make the fine-tuned copy")
    finetune_size: int = Field(32, ge=1, description="samples in each of these steps")
    anchors: Literal["reference"] | None = Field(
        None, description="reference: anchors are drawn to the mean feature alone; none: as in the paper"
    )
    memory_policy: Literal["reservoir", "ring"] = Field(
        "reservoir", description="uniform over all samples (reference), or the last of each task (paper)"
    )


class HAL(Method):
    resized_buffers = ("anchors", "drawn")
    net: Classifier
    mean_feature: Tensor
    anchors: Tensor | None
    drawn: Tensor | None

    def __init__(self, net: nn.Module, problem: Problem, config: HALConfig | None = None) -> None:
        super().__init__()
        self.net, self.config = with_features(net, "hal", problem.num_classes), config or HALConfig()
        self.view, self.plain_view = problem.train_view, problem.test_view
        size, generator = self.config.memory_size, problem.generator("memory")
        self.memory: Memory[LabelledSamples] = Memory(LabelledSamples, size, generator)
        if self.config.memory_policy == "ring":
            run_size = share_of_memory("hal with a ring", size, problem)
            self.memory = RingMemory(LabelledSamples, size, generator, run_size)
        self.register_buffer("mean_feature", torch.zeros(self.net.head.in_features))  # phi
        self.register_buffer("anchors", None)  # (A, ...) viewed images, one for each class of a finished task
        # Used only while a task's anchors are learnt: the anchors, and the fine-tuned copy of the net.
        self.register_buffer("drawn", None)
        self.tuned = OldNet(self.net)

    def begin_task(self, task: Task) -> Task:
        self.mean_feature.zero_()
        if isinstance(self.memory, RingMemory):
            self.memory.begin_run()
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        inputs, labels, name = batch.inputs, batch.labels, "current"
        if len(self.memory):
            replayed = self.memory.sample(replay_count(self.config, batch))
            inputs = torch.cat([inputs, self.view(replayed.images)])
            labels, name = torch.cat([labels, replayed.labels]), "mixed"
        terms = {name: cross_entropy(self.net(inputs), labels)}
        optimizer.zero_grad()
        terms[name].backward()
        if self.config.penalty:
            with evaluation_mode(self.net):
                if self.anchors is not None:
                    terms["anchors"] = self.config.penalty * self.anchors_moved(self.anchors, optimizer)
                    terms["anchors"].backward()  # adds to the gradient above
                optimizer.step()
                self.follow(batch)
        else:
            optimizer.step()
        self.memory.add(LabelledSamples(batch.images, batch.labels), batch.ids)
        return {name: term.detach() for name, term in terms.items()}

    def anchors_moved(self, anchors: Tensor, optimizer: Optimizer) -> Tensor:
        """Squared change of the anchors' outputs by a plain SGD step with the gradient so far."""
        with torch.no_grad(), after_step(optimizer):
            target = self.net(anchors)
        return mse_loss(self.net(anchors), target)

    @torch.no_grad()
    def follow(self, batch: Batch) -> None:
        """Update the moving average of features, with the weights after the step."""
        self.mean_feature.lerp_(self.net.features(batch.inputs).mean(0), 1 - self.config.beta)

    def phases(self, task: Task) -> list[Phase]:
        """After the main phase, a copy of the net is fine-tuned on the memory, and then anchors are learnt.

        Anchors are optimised so that the net is right and the copy wrong, which shows what will be forgotten.
        """
        config, main = self.config, Phase(MAIN, None, self.observe)
        if not config.penalty:
            return [main]
        steps = Phase.of_steps("fine-tune", self.num_tuning_steps, self.fine_tune, partial(self.draw, task))
        optimizer = partial(torch.optim.SGD, lr=config.anchor_lr)
        tune = replace(steps, parameters=self.tuned.parameters, optimizer=optimizer)
        anchors = Phase.of_steps("anchors", lambda: config.anchor_steps, partial(self.move_anchors, task))
        return [main, tune, anchors]

    def num_tuning_steps(self) -> int:
        return self.config.finetune_steps if len(self.memory) else 0

    def draw(self, task: Task) -> None:
        """Draw random anchors and copy the net; the copy's running statistics never change."""
        shape = self.plain_view(task.train.inputs[:1]).shape[1:]
        drawn = torch.rand(len(task.classes), *shape, generator=self.memory.generator)
        self.drawn = drawn.to(self.mean_feature.device)
        self.tuned.take()

    def fine_tune(self, batch: Batch, optimizer: Optimizer) -> Terms:
        assert self.tuned.copy is not None
        replayed = self.memory.sample(self.config.finetune_size)
        logits = self.tuned.copy(self.view(replayed.images))
        return descend(optimizer, {"replay": cross_entropy(logits, replayed.labels)})

    def move_anchors(self, task: Task, batch: Batch, optimizer: Optimizer) -> Terms:
        """One gradient step on all anchors; the net does not change, so the optimiser is not used."""
        assert self.drawn is not None
        assert self.tuned.copy is not None
        labels = torch.tensor(task.classes, device=self.drawn.device)
        with evaluation_mode(self.net):
            anchors = self.drawn.detach().requires_grad_()
            loss = self.anchor_losses(anchors, labels, self.tuned.copy).sum()  # anchors are independent
            gradient = torch.autograd.grad(loss, anchors)[0]
        self.drawn = (anchors - self.config.anchor_lr * gradient).detach()
        return {"anchors": loss.detach()}

    def end_task(self, task: Task) -> None:
        if self.drawn is not None:
            self.anchors = self.drawn if self.anchors is None else torch.cat([self.anchors, self.drawn])
        self.drawn = self.tuned.copy = None

    def anchor_losses(self, anchors: Tensor, labels: Tensor, copy: nn.Module) -> Tensor:
        """(A,) low if the net classifies an anchor right, the copy wrong, and it is near the mean feature.

        In the reference code the copy shares its weights with what stands for the net. So both
        cross-entropies are those of the copy and cancel, and the copy gives the features.
        """
        if self.config.anchors == "reference":
            distance = cast(Classifier, copy).features(anchors) - self.mean_feature
            return self.config.gamma * distance.square().sum(1)
        features = self.net.features(anchors)
        known = cross_entropy(self.net.head(features), labels, reduction="none")
        forgotten = cross_entropy(copy(anchors), labels, reduction="none")
        return known - forgotten + self.config.gamma * (features - self.mean_feature).square().sum(1)
