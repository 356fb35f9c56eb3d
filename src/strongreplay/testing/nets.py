"""The contracts of a net."""

from collections.abc import Callable

import torch
from torch import nn

from strongreplay.nets import seeded_init
from strongreplay.protocol import derive_generator
from strongreplay.testing.case import SHAPE, expect, weights


def check_net(
    make: Callable[..., nn.Module], input_shape: tuple[int, ...] = SHAPE, num_classes: int = 6
) -> None:
    """Check a function of (input_shape, num_classes): logits, seeded weights, gradients, saving."""
    nets = []
    for _ in range(2):
        with seeded_init(derive_generator(0, "net")):
            nets.append(make(input_shape, num_classes))
    net, again = nets
    expect(isinstance(net, nn.Module), f"The net is a {type(net).__name__}.", "Return an nn.Module.")
    same = torch.equal(weights(net), weights(again))
    expect(same, "Two nets of one seed differ.", "Draw initial weights with torch's own initialisers.")
    inputs = torch.rand(4, *input_shape, generator=derive_generator(0, "inputs"))
    logits = net(inputs)
    shape = tuple(logits.shape)
    expect(
        shape == (4, num_classes), f"The net gives {shape}, not (4, {num_classes}).", "Return (B, C) logits."
    )
    logits.square().sum().backward()
    idle = [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    expect(not idle, f"No gradient reaches {', '.join(idle)}.", "Use these parameters, or leave them out.")
    net.eval()
    with torch.no_grad():
        whole, single = net(inputs), torch.cat([net(each[None]) for each in inputs])
    apart = torch.allclose(whole, single, atol=1e-4)
    expect(
        apart, "In evaluation mode a sample's logits depend on its batch.", "Use running statistics there."
    )
    again.load_state_dict(net.state_dict())
    with torch.no_grad():
        loaded = torch.equal(again.eval()(inputs), whole)
    expect(loaded, "A loaded net answers differently.", "Keep tensors as parameters or buffers.")
