"""A model as one net from stored samples to logits, for export: backbone, normalisation of features, head."""

from copy import deepcopy
from pathlib import Path

from torch import Tensor, nn

from strongreplay.methods.averaged import AveragedNet
from strongreplay.models.export import Exported, export_onnx
from strongreplay.models.export_graph import OnFeatures
from strongreplay.models.model import Model


def export_model(model: Model, path: Path, images: Tensor | None = None, **about: str) -> Exported:
    """Write the model as ONNX; `images` are used for the comparison with PyTorch."""
    net, mean, std = answering_net(model), model.mean, model.std
    if not model.settings.learner.normalise:
        mean, std = [0.0], [1.0]
    if model.reader is not None:
        backbone = model.reader.backbone
        net = OnFeatures(deepcopy(backbone.body).cpu(), net, mean, std)
        mean, std, images = list(backbone.mean), list(backbone.std), None  # kept samples are no images
    return export_onnx(
        net, path, shape=model.shape, mean=mean, std=std, labels=model.labels, images=images, about=about
    )


def answering_net(model: Model) -> nn.Module:
    """The net that the method predicts with, without head rows that have no class yet."""
    chosen = model.method.answering_net()
    net: nn.Module = deepcopy(chosen.copy if isinstance(chosen, AveragedNet) else chosen)
    head, num_classes = net.head, len(model.labels)
    assert isinstance(head, nn.Linear)
    bias = None if head.bias is None else nn.Parameter(head.bias[:num_classes].detach())
    net.head = nn.Linear(head.in_features, num_classes, device="meta")  # on "meta", no weights are drawn
    net.head.weight, net.head.bias = nn.Parameter(head.weight[:num_classes].detach()), bias
    return net
