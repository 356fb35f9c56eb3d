"""A Vision Transformer (ViT). Parameters have the names and shapes of timm, so its files load by name.

Paper: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, https://arxiv.org/abs/2010.11929
An image is cut into square patches. Each becomes a token, and so does a learnt class token, whose output is
the feature. Blocks are attention and a feed-forward layer, both normalised before.
Prompts of a method enter in two ways: as further tokens, or as prefixes, which are keys and values put before
those of a block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from strongreplay.errors import ConfigError
from strongreplay.nets.classifier import Classifier

HEAD_SIZE = 64  # of every usual size; the number of heads follows from it
EXPANSION = 4  # of the feed-forward layers
SMALL = {"width": 32, "depth": 5, "heads": 4}  # without a size: for tests and small images
SIZES = {"tiny": 192, "small": 384, "base": 768}  # width; depth 12, patches of 16 pixels


@dataclass(frozen=True)
class Form:
    """What decides the names and shapes of the parameters."""

    width: int
    depth: int
    heads: int
    patch: int
    hidden: int  # of the feed-forward layers
    registers: int = 0  # further learnt tokens
    has_class_token: bool = True
    places_prefix: bool = True  # whether class token and registers have positions
    layer_scale: bool = False
    qk_norm: bool = False
    qkv_bias: bool = True
    averages: bool = False  # the feature is the normalised mean of all patches

    @property
    def num_prefix(self) -> int:
        """Tokens that are not patches."""
        return self.has_class_token + self.registers


def layer_norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-6)


class SelfAttention(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.heads, size = form.heads, form.width // form.heads
        self.qkv = nn.Linear(form.width, 3 * form.width, bias=form.qkv_bias)
        self.q_norm = layer_norm(size) if form.qk_norm else nn.Identity()
        self.k_norm = layer_norm(size) if form.qk_norm else nn.Identity()
        self.proj = nn.Linear(form.width, form.width)

    def forward(self, tokens: Tensor, prefix: Tensor | None = None) -> Tensor:
        """`prefix` is (B, 2, heads, L, head size): keys and values before the tokens' own."""
        batch, length, _ = tokens.shape
        parts = self.qkv(tokens).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = self.q_norm(parts[0]), self.k_norm(parts[1]), parts[2]
        if prefix is not None:
            added = prefix.to(keys.dtype)
            keys, values = torch.cat([added[:, 0], keys], 2), torch.cat([added[:, 1], values], 2)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(form.width, form.hidden), nn.Linear(form.hidden, form.width)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(tokens)))
        return out


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.gamma


class EncoderBlock(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.norm1, self.attn = layer_norm(form.width), SelfAttention(form)
        self.norm2, self.mlp = layer_norm(form.width), FeedForward(form)
        self.ls1 = LayerScale(form.width) if form.layer_scale else nn.Identity()
        self.ls2 = LayerScale(form.width) if form.layer_scale else nn.Identity()

    def forward(self, tokens: Tensor, prefix: Tensor | None = None) -> Tensor:
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens), prefix))
        out: Tensor = tokens + self.ls2(self.mlp(self.norm2(tokens)))
        return out


class Patches(nn.Module):
    def __init__(self, channels: int, form: Form) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, form.width, form.patch, form.patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class ViTBody(nn.Module):
    """From images to features; they are resized to `side` first, if it is given."""

    cls_token: nn.Parameter | None
    reg_token: nn.Parameter | None

    def __init__(self, form: Form, input_shape: tuple[int, ...], side: int | None = None) -> None:
        super().__init__()
        self.form, self.side, width = form, side, form.width
        self.grid = tuple((side or pixels) // form.patch for pixels in input_shape[1:])
        placed = self.grid[0] * self.grid[1] + (form.num_prefix if form.places_prefix else 0)
        self.register_parameter("cls_token", drawn(1, width) if form.has_class_token else None)
        self.register_parameter("reg_token", drawn(form.registers, width) if form.registers else None)
        self.pos_embed = drawn(placed, width)
        self.patch_embed = Patches(input_shape[0], form)
        self.blocks = nn.ModuleList(EncoderBlock(form) for _ in range(form.depth))
        self.norm = nn.Identity() if form.averages else layer_norm(width)
        self.fc_norm = layer_norm(width) if form.averages else nn.Identity()
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def tokens(self, images: Tensor) -> Tensor:
        """(B, tokens, D) with positions: class token, registers, patches."""
        if self.side is not None:
            size = (self.side, self.side)
            images = F.interpolate(images, size, mode="bilinear", antialias=True)
        patches = self.patch_embed(images)
        learnt = [each for each in (self.cls_token, self.reg_token) if each is not None]
        prefix = [each.expand(len(images), -1, -1) for each in learnt]
        if not self.form.places_prefix:
            return torch.cat([*prefix, patches + self.pos_embed], 1)
        return torch.cat([*prefix, patches], 1) + self.pos_embed

    def run(self, tokens: Tensor, prefixes: tuple[Tensor, ...] = ()) -> Tensor:
        """(B, tokens, D) after all blocks and the last norm; the first blocks have a prefix each."""
        for number, block in enumerate(self.blocks):
            tokens = block(tokens, prefixes[number] if number < len(prefixes) else None)
        out: Tensor = self.norm(tokens)
        return out

    def forward(self, images: Tensor, prompts: Tensor | None = None, *prefixes: Tensor) -> Tensor:
        """(B, D) features. With (B, P, D) prompts before the tokens, the means of their outputs.

        Prompts and prefixes of length 0 are none.
        """
        tokens = self.tokens(images)
        if prompts is None or not prompts.shape[1]:
            return self.pool(self.run(tokens, prefixes))
        outputs = self.run(torch.cat([prompts, tokens], 1), prefixes)
        return self.fc_norm(outputs[:, : prompts.shape[1]].mean(1))  # type: ignore[no-any-return]

    def pool(self, outputs: Tensor) -> Tensor:
        if self.form.has_class_token and not self.form.averages:
            return outputs[:, 0]
        return self.fc_norm(outputs[:, self.form.num_prefix :].mean(1))  # type: ignore[no-any-return]

    def class_position(self) -> Tensor:
        """(D,) the position of the class token, zero if it has none."""
        has_one = self.form.has_class_token and self.form.places_prefix
        return self.pos_embed[0, 0] if has_one else torch.zeros_like(self.pos_embed[0, 0])


def drawn(count: int, width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(1, count, width), std=0.02))


Count = Annotated[int, Field(ge=1)]


def vit(
    input_shape: tuple[int, ...],
    num_classes: int,
    width: Count | None = None,
    depth: Annotated[Count | None, Field(description="number of blocks")] = None,
    heads: Annotated[Count | None, Field(description="none: one for every 64 of the width")] = None,
    patch: Annotated[Count | None, Field(description="side of a patch in pixels")] = None,
    size: Annotated[
        Literal["tiny", "small", "base"] | None, Field(description="width 192, 384 or 768; none: a small net")
    ] = None,
    side: Annotated[Count | None, Field(description="images are resized to this side first")] = None,
    weights: Annotated[str | None, Field(description="a .safetensors file with the names of timm")] = None,
    weights_hash: Annotated[str | None, Field(description="its SHA-256, set automatically")] = None,
) -> Classifier:
    """With `weights`, all but the number of heads follows from the file; what is given must agree with it."""
    from strongreplay.nets.vit_weights import fill_in, form_of, read_weights

    if len(input_shape) != 3:
        raise ConfigError(f"net vit takes images (C, H, W), got samples of shape {input_shape}")
    sides = (side, side) if side else input_shape[1:]
    tensors = read_weights(weights, weights_hash) if weights else None
    asked = {"width": SIZES[size] if size else None, "depth": 12 if size else None}
    asked |= {"patch": 16 if size else None, "heads": None}
    given = {"width": width, "depth": depth, "heads": heads, "patch": patch}
    asked |= {key: value for key, value in given.items() if value is not None}
    form = form_of(tensors, asked, str(weights)) if tensors else new_form(asked, sides)
    check_form(form, sides)
    body = ViTBody(form, input_shape, side)
    if tensors:
        fill_in(body, tensors, str(weights))
    return Classifier(body, form.width, num_classes)


def new_form(asked: dict[str, int | None], sides: tuple[int, ...]) -> Form:
    """The form of a net with random weights."""
    width, depth = asked["width"] or SMALL["width"], asked["depth"] or SMALL["depth"]
    fits: Callable[[int], bool] = lambda patch: not any(pixels % patch for pixels in sides)  # noqa: E731
    patch = asked["patch"] or max(patch for patch in (1, 2, 3, 4) if fits(patch))
    return Form(width, depth, asked["heads"] or usual_heads(width), patch, EXPANSION * width)


def usual_heads(width: int) -> int:
    if width % HEAD_SIZE == 0:
        return width // HEAD_SIZE
    return SMALL["heads"] if width % SMALL["heads"] == 0 else 1


def check_form(form: Form, sides: tuple[int, ...]) -> None:
    if form.width % form.heads:
        raise ConfigError(
            f"net vit: net.heads must divide the width {form.width}, got {form.heads}; give another"
        )
    if any(pixels % form.patch for pixels in sides):
        raise ConfigError(
            f"net vit: patches of {form.patch} pixels must divide the images' {sides[0]} x {sides[1]}; "
            "set net.patch, or resize images with net.side"
        )
