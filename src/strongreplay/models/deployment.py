"""A model as one net from stored samples to logits, for export: backbone, normalisation of features, head."""

from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from strongreplay.errors import ConfigError
from strongreplay.methods.averaged import AveragedNet
from strongreplay.models.export import Exported, export_onnx
from strongreplay.models.model import Model
from strongreplay.nets.onnx_body import OnnxBody


class OnFeatures(nn.Module):
    """A frozen body, and a net that takes its features, normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, net: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.body, self.net = body, net
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net((self.body(inputs) - self.mean) / self.std)
        return logits


def export_model(model: Model, path: Path, images: Tensor | None = None, **about: str) -> Exported:
    """Write the model as ONNX; `images` are used for the comparison with PyTorch."""
    net, mean, std = answering_net(model), model.mean, model.std
    if not model.settings.learner.normalise:
        mean, std = [0.0], [1.0]
    if model.reader is not None:
        backbone = model.reader.backbone
        if isinstance(backbone.body, OnnxBody):
            raise ConfigError(
                f"{path}: the backbone {Path(backbone.name).name} is an ONNX file, which is not written into "
                "another; use `ser predict` or `ser serve`"
            )
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
