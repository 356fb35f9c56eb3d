"""Correction of the head: after an update, its rows are trained once more on the memory, all classes alike.

During an update most samples belong to its own classes, so the head favours them. The correction draws each
class equally often. The body does not change, and neither do its running statistics.
"""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from strongreplay.methods.averaged import AveragedNet
from strongreplay.methods.base import Phase, descend, evaluation_mode
from strongreplay.models.model import Model
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Split, Terms

PHASE = "correction"


def correction_phases(model: Model, columns: Callable[[Tensor], Tensor]) -> list[Phase]:
    """The phase of the correction, or none; `columns` maps ids to classes."""
    epochs, lr = model.settings.learner.correction, model.settings.train.lr
    if epochs is None or model.memory is None:
        return []
    memory = model.memory

    def split() -> Split:
        labels = columns(memory.ids)
        rows = equal_shares(labels)
        images = memory.rows.images
        return Split(images[rows.to(images.device)], labels[rows].to(images.device), memory.ids[rows])

    def observe(batch: Batch, optimizer: Optimizer) -> Terms:
        net = answering_classifier(model)
        with torch.no_grad(), evaluation_mode(net):
            features = net.features(batch.inputs)
        return descend(optimizer, {"correction": cross_entropy(net.head(features), batch.labels)})

    def make_optimizer(parameters: Iterable[Tensor]) -> Optimizer:
        return SGD(parameters, lr, momentum=0.9)

    def rate(epoch: int, part: float) -> float:
        return lr * (1 - (epoch + part) / epochs)

    def parameters() -> list[nn.Parameter]:
        return list(answering_classifier(model).head.parameters())

    return [Phase(PHASE, epochs, observe, split, parameters, make_optimizer, rate)]


def equal_shares(labels: Tensor) -> Tensor:
    """As many rows of each class, together about as many as given; those of a small class are repeated."""
    sizes = labels.bincount()
    share = -(-len(labels) // int((sizes > 0).sum()))
    rows = [(labels == label).nonzero().flatten() for label in sizes.nonzero().flatten()]
    return torch.cat([each.repeat(-(-share // len(each)))[:share] for each in rows])


def answering_classifier(model: Model) -> Classifier:
    net = model.method.answering_net()
    return cast(Classifier, net.copy if isinstance(net, AveragedNet) else net)
