"""Methods that need features take any net whose last linear layer can be found or named."""

import pytest
import torch
from support.tiny_stream import NUM_CLASSES, make_net, make_problem
from torch import Tensor, nn

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods import METHODS
from strongreplay.nets import Classifier, seeded_init, with_features
from strongreplay.nets.features import FeatureNet, find_head, name_head
from strongreplay.protocol import derive_generator
from strongreplay.training.engine import train_task

NEEDY = ("icarl", "lwf", "rm", "co2l", "hal", "tamil")


class TorchvisionLike(nn.Module):
    """Body, pooling and layer `fc`, and `features` that is a module: the habits of published nets."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.avgpool = nn.AdaptiveAvgPool2d((3, 3))
        self.hidden = nn.Linear(72, 16)
        self.fc = nn.Linear(16, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.hidden(torch.flatten(self.avgpool(self.features(inputs)), 1)).relu())
        return logits


class Softened(TorchvisionLike):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).log_softmax(1)


def make(kind: type[TorchvisionLike] = TorchvisionLike, seed: int = 0) -> nn.Module:
    with seeded_init(derive_generator(seed, "net")):
        return kind(NUM_CLASSES)


def test_a_classifier_is_taken_as_it_is() -> None:
    net = make_net()
    assert with_features(net, "x", NUM_CLASSES) is net


def test_the_features_are_what_the_last_linear_layer_gets() -> None:
    plain, inputs = make().eval(), torch.rand(5, 1, 6, 6)
    net = with_features(plain, "x", NUM_CLASSES)
    assert isinstance(net, FeatureNet)
    assert net.head is plain.fc
    assert net.features(inputs).shape == (5, 16)
    assert torch.equal(net.head(net.features(inputs)), plain(inputs))
    assert torch.equal(net(inputs), plain(inputs))
    assert net.features(inputs).requires_grad
    assert not plain.fc._forward_hooks


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDY)
def test_a_method_that_needs_features_learns_with_such_a_net(name: str, stream: Stream) -> None:
    row = METHODS[name]
    settings = {"memory_size": 24} if row.has_memory else {}
    if name == "rm":
        settings["reset_head"] = True
    states = []
    for _ in range(2):
        method = row.build(make(), make_problem(stream), row.config(**settings))
        for task in stream:
            optimizer = torch.optim.SGD(method.net.parameters(), lr=0.05)
            order = derive_generator(0, f"order {task.index}")
            view = stream.test_view
            train_task(method, task, view, optimizer, epochs=1, batch_size=16, generator=order)
        states.append(method.state_dict())
    again = row.build(make(seed=3), make_problem(stream, seed=3), row.config(**settings))
    again.load_state_dict(states[0])
    inputs = stream.test_view(stream.test(0).inputs[:4])
    assert method.eval().predict(inputs).shape == (4, NUM_CLASSES)
    assert torch.equal(again.eval().predict(inputs), method.predict(inputs))


def test_what_is_ambiguous_missing_or_misnamed_is_told() -> None:
    two = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.Linear(6, 6))
    with pytest.raises(ConfigError, match=r"several linear layers .* 1 \(6 outputs\), 2 \(6 outputs\); name"):
        find_head(two, 6)
    assert name_head(two, "2").head is two[2]
    with pytest.raises(ConfigError, match=r"no linear layer has an output for each of 9 classes"):
        find_head(two, 9)
    with pytest.raises(ConfigError, match=r"net\.head=fc is no linear layer of Sequential; it has 1, 2"):
        name_head(two, "fc")


def test_a_net_that_changes_what_its_head_gives_is_refused() -> None:
    net = with_features(make(Softened), "x", NUM_CLASSES)
    with pytest.raises(ConfigError, match="do not change the logits after the head"):
        net.features(torch.rand(2, 1, 6, 6))


def test_a_head_that_is_not_used_is_told() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(36, NUM_CLASSES)

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs.flatten(1)

    with pytest.raises(ConfigError, match="the head fc is used 0 times"):
        with_features(Idle(), "x", NUM_CLASSES).features(torch.rand(2, 1, 6, 6))


def test_a_net_with_a_features_method_and_a_head_needs_no_wrapper() -> None:
    class Own(Classifier):
        pass

    net = Own(nn.Flatten(), 36, NUM_CLASSES)
    assert with_features(net, "x", NUM_CLASSES) is net
