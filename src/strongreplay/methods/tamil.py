"""Task-specific Attention Modules in Lifelong learning (TAMiL).

Paper: Bhat et al., "Task-Aware Information Routing from Common Representation Space in Lifelong Learning",
2023, https://arxiv.org/abs/2302.11346
Reference: the authors' code, NeurAI-Lab/TAMiL: two independent draws from memory. The averaged net processes
both for its batch-norm statistics, though only its output for the first is used. By our reading the averaged
net predicts; the reference scores both nets, and so do we, as `predictors`.
Differences from the reference: the attention module of the next task is made when a task ends, with the same
initial weights in both nets. So the number of tasks need not be known, and the last module is never used.
"""

from copy import deepcopy
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.averaged import AveragedNet
from strongreplay.methods.base import (
    Method,
    Problem,
    ReplayConfig,
    SavedGenerator,
    descend,
    replay_count,
)
from strongreplay.methods.expansion import add_missing, count_children
from strongreplay.methods.samples import TaskSamples
from strongreplay.nets import Classifier, seeded_init, with_features
from strongreplay.protocol import Batch, Task, Terms


class TAMiLConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept")
    beta: float = Field(0.5, ge=0, description="weight of the loss on replayed labels")
    penalty: float = Field(0.1, ge=0, description="weight of the distance to the averaged net's logits")
    contrast: float = Field(0.1, ge=0, description="weight of the distance of this gate to earlier ones")
    code_size: int = Field(64, ge=1, description="hidden units of a task's attention module")
    rate: float = Field(0.5, ge=0, le=1, description="probability to update the averaged net in a step")
    decay: float = Field(0.99, ge=0, le=1, description="maximal decay of the averaged net")
    eval_net: Literal["averaged", "working"] = Field("averaged", description="the net that predicts")


class AttentiveNet(nn.Module):
    """A classifier that multiplies its features by the gate of one task before the head."""

    def __init__(self, classifier: Classifier, code_size: int) -> None:
        super().__init__()
        self.classifier, self.code_size = classifier, code_size
        self.attention = nn.ModuleList()
        self.num_met = 1  # modules in use, those of tasks that have begun; the next task's is not counted

    def grow(self, generator: torch.Generator) -> None:
        """Add the attention module of one more task."""
        weight = self.classifier.head.weight
        with seeded_init(generator):
            encode = nn.Linear(weight.shape[1], self.code_size)
            decode = nn.Linear(self.code_size, weight.shape[1])
        module = nn.Sequential(encode, nn.ReLU(), decode, nn.Sigmoid())
        self.attention.append(module.to(weight.device).requires_grad_(weight.requires_grad))

    def gates(self, features: Tensor, first: int, last: int) -> Tensor:
        """(K, B, D): the gates of modules first, ..., last - 1."""
        chosen: list[Any] = list(self.attention)[first:last]
        # All at once: a fifth faster than one after another.
        weight, bias = torch.cat([m[0].weight for m in chosen]), torch.cat([m[0].bias for m in chosen])
        codes = linear(features, weight, bias).relu_().unflatten(1, (len(chosen), -1)).transpose(0, 1)
        weight, bias = torch.stack([m[2].weight for m in chosen]), torch.stack([m[2].bias for m in chosen])
        return torch.baddbmm(bias[:, None], codes, weight.transpose(1, 2)).sigmoid_()

    def answer(self, features: Tensor, gate: Tensor) -> Tensor:
        logits: Tensor = self.classifier.head(gate * features)
        return logits

    def forward(self, inputs: Tensor, tasks: Tensor | None = None) -> Tensor:
        """Logits with the gate of each sample's task, or with the gate nearest to its features."""
        features = self.classifier.features(inputs)
        gates = self.gates(features, 0, self.num_met)
        if tasks is None:
            tasks = nearest(gates, features)
        return self.answer(features, gates[tasks, torch.arange(len(tasks), device=tasks.device)])

    def get_extra_state(self) -> int:
        return self.num_met

    def set_extra_state(self, state: int) -> None:
        self.num_met = state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Submodules are loaded after this call, so there must be as many as the state has.
        count = count_children(state_dict, prefix + "attention.")
        del self.attention[count:]
        while len(self.attention) < count:
            self.grow(torch.Generator())  # overwritten at once
        super()._load_from_state_dict(state_dict, prefix, *args)


class TAMiL(Method):
    net: AttentiveNet

    def __init__(self, net: nn.Module, problem: Problem, config: TAMiLConfig | None = None) -> None:
        super().__init__()
        self.config, self.view = config or TAMiLConfig(), problem.train_view
        self.draws = SavedGenerator(problem.generator("attention"))
        self.net = AttentiveNet(with_features(net, "tamil", problem.num_classes), self.config.code_size)
        self.net.grow(self.draws.generator)
        updates = problem.generator("averaged updates")
        self.averaged = AveragedNet(self.net, self.config.rate, self.config.decay, updates)
        self.has_statistics = any(True for _ in net.buffers())
        self.memory = Memory(TaskSamples, self.config.memory_size, problem.generator("memory"))

    def begin_task(self, task: Task) -> Task:
        self.net.num_met = self.averaged.copy.num_met = len(self.net.attention)
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        current = self.net.num_met - 1
        add_missing(optimizer, self.net.attention[current])
        terms = descend(optimizer, self.terms(batch, current))
        tasks = batch.labels.new_full((len(batch),), current)
        self.memory.add(TaskSamples(batch.images, batch.labels, tasks), batch.ids)
        self.averaged.follow()
        return terms

    def terms(self, batch: Batch, current: int) -> Terms:
        net, features = self.net, self.net.classifier.features(batch.inputs)
        gate = net.gates(features, current, current + 1)[0]
        terms = {"current": cross_entropy(net.answer(features, gate), batch.labels)}
        if current:
            with torch.no_grad():
                earlier = net.gates(features, 0, current)
            terms["contrast"] = -self.config.contrast * difference(earlier, gate)
        if len(self.memory):
            terms |= self.replayed(replay_count(self.config, batch))
        return terms

    def replayed(self, count: int) -> Terms:
        """Terms of two independent draws; the net selects gates itself, the averaged net gets the tasks."""
        first, second = self.memory.sample(count), self.memory.sample(count)
        inputs = self.view(first.images)
        distance = mse_loss(self.net(inputs), self.averaged(inputs, first.tasks))
        inputs = self.view(second.images)
        if self.has_statistics:
            with torch.no_grad():
                self.averaged.copy.classifier.features(inputs)
        return {
            "consistency": self.config.penalty * distance,
            "replay": self.config.beta * cross_entropy(self.net(inputs), second.labels),
        }

    def end_task(self, task: Task) -> None:
        # The module of the next task; it is in use as soon as that task begins.
        self.net.grow(self.draws.generator)
        self.averaged.copy.attention.append(deepcopy(self.net.attention[-1]).requires_grad_(False))

    def answering_net(self) -> nn.Module:
        return self.predictors()[self.config.eval_net]

    def predictors(self) -> dict[str, nn.Module]:
        return {"averaged": self.averaged, "working": self.net}


@torch.no_grad()
def nearest(gates: Tensor, features: Tensor) -> Tensor:
    """(B,) index of the gate nearest to the features (as published, though no loss makes them similar)."""
    return (gates - features).square_().mean(2).argmin(0)


def difference(earlier: Tensor, gate: Tensor) -> Tensor:
    """L1 distance of a gate's softmax to that of every earlier one: mean over samples, sum over gates."""
    return (earlier.softmax(2) - gate.softmax(1)).abs().sum() / len(gate)
