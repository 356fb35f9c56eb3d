"""ER-ACE: arriving samples compete only with the classes of their own batch and with classes nobody has met.

Paper: Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual Learning",
ICLR 2022.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay import Batch, Memory, Method, Problem, Terms, descend
from strongreplay.methods.base import ReplayConfig, replay_count


class Sample(NamedTuple):
    images: Tensor
    labels: Tensor


class ERACE(Method):
    """Replay; arriving samples do not push old classes away."""

    label = "ER-ACE"
    paper = "Caccia et al. 2022"
    keeps = "memory"
    seen: Tensor

    class Config(ReplayConfig):
        """memory_size and replay_size; ER-ACE has no settings of its own."""

    def __init__(self, net: nn.Module, problem: Problem, config: Config) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config, problem.train_view
        self.memory = Memory(Sample, config.memory_size, problem.generator("memory"))
        self.register_buffer("seen", torch.zeros(problem.num_classes, dtype=torch.bool))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        present = torch.zeros_like(self.seen)
        present[batch.labels] = True
        self.seen |= present
        absent = self.seen & ~present  # met before, but not in this batch
        logits = self.net(batch.inputs).masked_fill(absent, -1e9)
        terms = {"current": cross_entropy(logits, batch.labels)}
        if len(self.memory):
            replayed = self.memory.sample(replay_count(self.config, batch))
            terms["replay"] = cross_entropy(self.net(self.view(replayed.images)), replayed.labels)
        found = descend(optimizer, terms)
        self.memory.add(Sample(batch.images, batch.labels), batch.ids)
        return found
