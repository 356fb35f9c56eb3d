"""Features of any net: the input of its last linear layer, the head. Some methods need them."""

from typing import cast

from torch import Tensor, nn

from strongreplay.errors import ConfigError
from strongreplay.nets.classifier import Classifier


class FeatureNet(nn.Module):
    """A user's net with its head known by name; it returns the same logits, and also features."""

    def __init__(self, net: nn.Module, head_name: str) -> None:
        super().__init__()
        self.net, self.head_name = net, head_name

    @property
    def head(self) -> nn.Linear:
        return cast(nn.Linear, self.net.get_submodule(self.head_name))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net(inputs)
        return logits

    def features(self, inputs: Tensor) -> Tensor:
        """(B, D): the input of the head, recorded by a hook while the whole net runs."""
        calls: list[tuple[Tensor, Tensor]] = []
        hook = self.head.register_forward_hook(lambda head, args, logits: calls.append((args[0], logits)))
        try:
            answer = self.net(inputs)
        finally:
            hook.remove()
        if len(calls) != 1:
            raise ConfigError(
                f"the head {self.head_name} is used {len(calls)} times in a forward pass, not once"
            )
        features, logits = calls[0]
        if features.dim() != 2 or answer.data_ptr() != logits.data_ptr() or answer.shape != logits.shape:
            raise ConfigError(
                f"the head {self.head_name} must map (B, D) features to the output of the net; it maps "
                f"{tuple(features.shape)} to {tuple(logits.shape)}, and the net returns "
                f"{tuple(answer.shape)}: do not change the logits after the head, or name another layer with "
                "net.head"
            )
        return features


def with_features(net: nn.Module, method: str, num_classes: int) -> Classifier:
    """The net itself if it has features(inputs) and a head, otherwise a FeatureNet around it."""
    features = getattr(net, "features", None)  # in torchvision's nets `features` is a module, not this method
    if callable(features) and not isinstance(features, nn.Module) and isinstance(net.head, nn.Linear):
        return cast(Classifier, net)
    try:
        return cast(Classifier, FeatureNet(net, find_head(net, num_classes)))
    except ConfigError as error:
        raise ConfigError(f"{method} needs the features of its net: {error}") from None


def find_head(net: nn.Module, num_classes: int) -> str:
    """The name of the only linear layer that has as many outputs as there are classes."""
    layers = linear_layers(net)
    found = [name for name, layer in layers.items() if layer.out_features == num_classes]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{name} ({layer.out_features} outputs)" for name, layer in layers.items()) or "none"
    what = "several linear layers have" if found else "no linear layer has"
    raise ConfigError(
        f"{what} an output for each of {num_classes} classes in {type(net).__name__}; its linear layers are "
        f"{known}; name the last one with --set net.head=NAME"
    )


def name_head(net: nn.Module, name: str) -> FeatureNet:
    """The net with the named layer as its head."""
    layers = linear_layers(net)
    if name not in layers:
        known = ", ".join(layers) or "none"
        raise ConfigError(f"net.head={name} is no linear layer of {type(net).__name__}; it has {known}")
    return FeatureNet(net, name)


def linear_layers(net: nn.Module) -> dict[str, nn.Linear]:
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear) and name}
