"""SGD: plain training. On each task in turn it is the lower bound; on all tasks together it is Joint, the
upper bound.

The loss is cross-entropy over all outputs of the head, not masked to the classes of the current task.
"""

from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.methods.base import Method, MethodConfig, Problem, descend
from strongreplay.protocol import Batch, Terms


class SGDConfig(MethodConfig):
    """No settings besides those of training."""


class SGD(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: SGDConfig | None = None) -> None:
        super().__init__()
        self.net = net

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        return descend(optimizer, {"current": cross_entropy(self.net(batch.inputs), batch.labels)})
