"""Parts of DRI: a loss that pulls features of a class together, and a small generator of images."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import one_hot, softplus

from strongreplay.protocol import Terms

CODE_SIZE, HIDDEN_SIZE = 64, 256


class ClassGAN(nn.Module):
    """A class-conditional GAN with linear layers; images in [0, 1]."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.shape, self.num_classes = shape, num_classes
        self.generator = layers(CODE_SIZE + num_classes, int(torch.Size(shape).numel()))
        self.critic = layers(int(torch.Size(shape).numel()) + num_classes, 1)

    def forward(self, codes: Tensor, labels: Tensor) -> Tensor:
        """Images of the classes."""
        pixels: Tensor = self.generator(self.with_labels(codes, labels)).sigmoid()
        return pixels.view(-1, *self.shape)

    def losses(self, images: Tensor, labels: Tensor, codes: Tensor) -> Terms:
        """The critic separates real from generated images; the generator's loss does not train it."""
        made = self(codes, labels)
        real, fake = (self.critic(self.with_labels(each, labels)) for each in (images, made.detach()))
        fixed = {name: weight.detach() for name, weight in self.critic.named_parameters()}
        taken = functional_call(self.critic, fixed, (self.with_labels(made, labels),))
        return {
            "critic": softplus(-real).mean() + softplus(fake).mean(),
            "generator": softplus(-taken).mean(),
        }

    def with_labels(self, values: Tensor, labels: Tensor) -> Tensor:
        return torch.cat([values.flatten(1), one_hot(labels, self.num_classes).to(values)], 1)


def layers(num_in: int, num_out: int) -> nn.Sequential:
    hidden = [nn.Linear(num_in, HIDDEN_SIZE), nn.LeakyReLU(0.2)]
    return nn.Sequential(*hidden, nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE), nn.LeakyReLU(0.2),
                         nn.Linear(HIDDEN_SIZE, num_out))  # fmt: skip


def multi_similarity(features: Tensor, labels: Tensor) -> Tensor:
    """Multi-similarity loss of unit features (Wang et al. 2019), over pairs that are hard by the margin."""
    alpha, beta, base, margin, far_off = 2, 10, 0.5, 0.1, 4.0  # cosines differ by at most 2
    with torch.no_grad():  # value and slope together: autograd takes far longer; so do masks of booleans
        alike, numbers = features @ features.t(), labels.to(features.dtype)
        apart = (numbers[:, None] - numbers).abs_().sign_()
        same = 1 - apart
        weight = (alike - base).mul_(apart * (alpha + beta) - alpha).exp_()
        # A pair counts if a pair of the other kind is nearly as bad, or if there is none of the other kind.
        worst_apart = alike.sub(same, alpha=far_off).amax(1, keepdim=True)
        worst_apart.masked_fill_(worst_apart < -2, torch.inf)
        worst_same = alike.add(apart, alpha=far_off).fill_diagonal_(torch.inf).amin(1, keepdim=True)
        worst_same.masked_fill_(worst_same > 2, -torch.inf)
        near, far = (worst_apart + margin - alike).sign_(), (alike - (worst_same - margin)).sign_()
        pulled = near.clamp_(min=0).mul_(same).fill_diagonal_(0).mul_(weight)
        pushed = far.clamp_(min=0).mul_(apart).mul_(weight)
        near, far = 1 + pulled.sum(1, keepdim=True), 1 + pushed.sum(1, keepdim=True)
        value = (near.log() / alpha + far.log() / beta).mean()
        slope = pushed.div_(far).sub_(pulled.div_(near)).div_(len(labels))
        slope = (slope + slope.t()) @ features
    return value + torch.dot(slope.view(-1), (features - features.detach()).view(-1))  # adds 0
