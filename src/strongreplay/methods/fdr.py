"""Function Distance Regularisation (FDR).

Paper: Benjamin et al., "Measuring and Regularizing Networks in Function Space", 2019,
https://arxiv.org/abs/1805.08289
Reference: mammoth, tag neurips2020, which gave the published numbers: one step on the stream's batch, then a
second one, with the same learning rate, on the mean distance of probabilities. It reads `alpha` but never
uses it, so alpha is 1 here. At the end of a task it stores the logits of augmented images in training mode,
which changes batch-norm statistics (`stored_logits="train"`); our default is plain images in evaluation mode.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory, take_ids
from strongreplay.methods.base import Method, Problem, ReplayConfig, descend, predict_all, replay_count
from strongreplay.protocol import Batch, Task, Terms
from strongreplay.sampling import first_of_each


class FDRSamples(NamedTuple):
    images: Tensor
    logits: Tensor  # (M, C), the net's output at the end of the sample's task
    tasks: Tensor  # (M,) number of that task


class FDRConfig(ReplayConfig):
    alpha: float = Field(1.0, ge=0, description="weight of the distance to stored outputs; 0 replays nothing")
    stored_logits: Literal["eval", "train"] = Field(
        "eval", description="plain images in evaluation mode, or augmented ones in training mode (reference)"
    )


class FDR(Method):
    num_finished: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: FDRConfig | None = None) -> None:
        super().__init__()
        self.net, self.config = net, config or FDRConfig()
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.memory = Memory(FDRSamples, self.config.memory_size, problem.generator("memory"))
        self.register_buffer("num_finished", torch.tensor(0))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        terms = descend(optimizer, {"current": cross_entropy(self.net(batch.inputs), batch.labels)})
        if len(self.memory) and self.config.alpha:
            replayed = self.memory.sample(replay_count(self.config, batch))
            moved = distance(self.net(self.view(replayed.images)), replayed.logits)
            terms |= descend(optimizer, {"distance": self.config.alpha * moved})
        return terms

    def end_task(self, task: Task) -> None:
        """Divide the memory equally among all finished tasks, including this one."""
        number = int(self.num_finished)
        quota = self.memory.capacity // (number + 1)
        self.num_finished += 1
        if len(self.memory):
            self.memory.keep(first_of_each(self.memory.rows.tasks.cpu(), quota))
        order = torch.randperm(len(task.train), generator=self.memory.generator)
        quota = min(quota, len(order))
        if quota:
            images, logits = self.answers(task.train.inputs, order, quota)
            ids = take_ids(task.train.ids, order[:quota])
            self.memory.append(FDRSamples(images, logits, self.num_finished.expand(quota) - 1), ids)

    def answers(self, images: Tensor, order: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` images in the given order and their logits, on the net's device."""
        device = self.num_finished.device
        if self.config.stored_logits == "eval":
            chosen = images[order[:count]].to(device)
            return chosen, predict_all(self.net, chosen, self.plain_view)
        size = self.config.replay_size or 32
        # Full batches only, so that the batch statistics of the last samples do not depend on `count`.
        chosen = images[order[: count + -count % size]].to(device)
        with torch.no_grad():
            logits = torch.cat([self.net(self.view(part)) for part in chosen.split(size)])
        return chosen[:count], logits[:count]


def distance(logits: Tensor, stored: Tensor) -> Tensor:
    """Mean Euclidean distance of probabilities; the gradient of the norm at 0 is 0 in PyTorch, not NaN."""
    difference = logits[:, : stored.shape[1]].softmax(1) - stored.softmax(1)
    distances: Tensor = torch.linalg.vector_norm(difference, dim=1)
    return distances.mean()
