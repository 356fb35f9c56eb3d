"""The Lifelong Vision Transformer: a convolutional stem, attention with external keys, and two heads.

Paper: Wang et al., "Continual Learning with Lifelong Vision Transformer", CVPR 2022. The authors published no
code; this is a reconstruction from the paper and their later work. Its 8,929,088 parameters with 100 classes
at 32 x 32 agree with the 8.9 M reported; depth, heads and expansion are not confirmed.

Keys do not depend on the input: a learnt matrix, the same for all inputs and tasks, maps queries to scores.
Positions are rows of a matrix here, so every 1 x 1 convolution is a linear layer. The stem is `resnet18`
without its last stage. A width other than 64 scales everything except the number of heads.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from strongreplay.nets.classifier import Classifier
from strongreplay.nets.resnet import BasicBlock, conv3x3, layout_for

DROPOUT = 0.1
EXPANSION = 2  # of the feed-forward layers
Sides = tuple[int, int]  # rows and columns of a map


class Dropout(nn.Module):
    """Dropout with its own generator, which is seeded when the net is initialised and saved with it.

    It draws on the CPU, like the whole package: 16 bits per value, so the rate is exact to 1e-5.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return values
        kept = self.draw(tuple(values.shape)).to(values.device)
        return values * kept.to(values.dtype).div_(1 - self.rate)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Which values are kept."""
        words = torch.empty(-(-prod(shape) // 4), dtype=torch.int64)
        words.random_(-(2**63), None, generator=self.generator)
        bits = words.view(torch.int16)[: prod(shape)].view(shape)
        return bits >= round(self.rate * 2**16) - 2**15

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())


class Norm(nn.BatchNorm1d):
    """Batch norm over rows; a single row has no variance, so it uses the running statistics."""

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > 1:
            return super().forward(rows)
        return F.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def linear_norm(num_in: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_in, num_out, bias=False), Norm(num_out))


def distances(sides: Sides, stride: int) -> Tensor:
    """(queries, keys): index of each pair in a table of |row difference| and |column difference|."""
    rows, columns = (torch.arange(side) for side in sides)
    row_steps = (rows[::stride, None] - rows).abs()  # (query rows, key rows)
    column_steps = (columns[::stride, None] - columns).abs()
    pairs = row_steps[:, None, :, None] * sides[1] + column_steps[:, None]  # (rows, columns, rows, columns)
    return pairs.flatten(2).flatten(0, 1)


class ExternalAttention(nn.Module):
    """Queries come from the input, keys are weights; with stride 2, queries at every second position."""

    places: Tensor

    def __init__(self, num_in: int, num_out: int, sides: Sides, heads: int, width: int, stride: int) -> None:
        super().__init__()
        self.sides, self.heads, self.stride = sides, heads, stride
        key_size, num_keys = max(width // 2, 1), prod(sides)
        self.query = linear_norm(num_in, key_size * heads)
        self.value = linear_norm(num_in, width * heads)
        self.key = linear_norm(key_size * heads, heads * num_keys)  # K: all heads' queries, mixed
        self.table = nn.Parameter(torch.randn(heads, num_keys))  # Bp: by distance
        self.scale = key_size**-0.5  # divides the table only; the norm after the keys scales the scores
        self.register_buffer("places", distances(sides, stride), persistent=False)
        self.out = nn.Linear(width * heads, num_out)
        self.norm = Norm(num_out)
        nn.init.zeros_(self.norm.weight)

    def scores(self, queries: Tensor) -> Tensor:
        """(B, heads, queries, keys) before the softmax, from (B * queries, heads * key_size)."""
        num_queries, num_keys = self.places.shape
        products = self.key(queries).view(-1, num_queries, self.heads, num_keys).transpose(1, 2)
        scores: Tensor = products + self.table[:, self.places] / self.scale
        return scores

    def forward(self, rows: Tensor) -> Tensor:
        asking = rows
        if self.stride > 1:
            maps = rows.view(-1, *self.sides, rows.shape[1])
            asking = maps[:, :: self.stride, :: self.stride].flatten(0, 2)
        weights = self.scores(self.query(asking)).softmax(-1)
        values = self.value(rows).view(len(weights), prod(self.sides), self.heads, -1).transpose(1, 2)
        mixed = (weights @ values).transpose(1, 2).flatten(2).flatten(0, 1)  # (B * queries, heads * width)
        out: Tensor = self.norm(self.out(F.gelu(mixed)))
        return out


class TransformerBlock(nn.Module):
    """Attention and feed-forward; with a stride, the attention has no residual connection."""

    def __init__(
        self, num_in: int, num_out: int, sides: Sides, heads: int, width: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.attention = ExternalAttention(num_in, num_out, sides, heads, width, stride)
        self.residual = stride == 1
        self.widen = nn.Linear(num_out, EXPANSION * num_out)
        self.narrow = nn.Linear(EXPANSION * num_out, num_out)
        self.dropout = Dropout(DROPOUT)

    def forward(self, rows: Tensor) -> Tensor:
        out = self.dropout(self.attention(rows))
        rows = rows + out if self.residual else out
        inner = self.dropout(F.gelu(self.widen(rows)))
        mixed: Tensor = rows + self.dropout(self.narrow(inner))
        return mixed


class LVTBody(nn.Module):
    """Stem, two blocks, one block that halves the maps and doubles the channels, two blocks, average pool."""

    def __init__(self, input_shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        channels, height, length = input_shape
        self.layout = layout_for(width)
        self.stem = nn.Sequential(
            conv3x3(channels, width), nn.BatchNorm2d(width), nn.ReLU(),
            BasicBlock(width, width, 1), BasicBlock(width, width, 1),
            BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1),
            BasicBlock(2 * width, 4 * width, 2), BasicBlock(4 * width, 4 * width, 1),
        )  # fmt: skip
        for layer in self.stem.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)
        wide = -(-height // 4), -(-length // 4)
        small = -(-wide[0] // 2), -(-wide[1] // 2)
        self.blocks = nn.Sequential(
            TransformerBlock(4 * width, 4 * width, wide, 4, width),
            TransformerBlock(4 * width, 4 * width, wide, 4, width),
            TransformerBlock(4 * width, 8 * width, wide, 8, width, stride=2),
            TransformerBlock(8 * width, 8 * width, small, 8, width),
            TransformerBlock(8 * width, 8 * width, small, 8, width),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        maps = self.stem(inputs.contiguous(memory_format=self.layout))
        rows = self.blocks(maps.permute(0, 2, 3, 1).flatten(0, 2))
        pooled: Tensor = rows.view(len(inputs), -1, rows.shape[1]).mean(1)
        return pooled


class LVTNet(Classifier):
    """`head` learns all tasks and predicts; `injection` learns the current task only."""

    head: nn.Linear

    def __init__(self, body: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__(body, num_features, num_classes)
        self.head = nn.Linear(num_features, num_classes, bias=False)
        self.injection = nn.Linear(num_features, num_classes, bias=False)
        for head in (self.head, self.injection):
            nn.init.kaiming_normal_(head.weight, nonlinearity="linear")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # In a net that grows, `injection` stays as wide as the first classes needed it.
        saved, weight = state_dict.get(f"{prefix}injection.weight"), self.injection.weight
        if saved is not None and len(saved) != len(weight):
            self.injection.out_features = len(saved)
            self.injection.weight = nn.Parameter(weight.new_empty(len(saved), weight.shape[1]))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def attention_parameters(self) -> list[nn.Parameter]:
        """The parameters that determine attention: external keys with their norms, and position tables."""
        layers = [layer for layer in self.body.modules() if isinstance(layer, ExternalAttention)]
        return [*(p for layer in layers for p in layer.key.parameters()), *(layer.table for layer in layers)]


def lvt(input_shape: tuple[int, ...], num_classes: int, width: int = 64) -> LVTNet:
    net = LVTNet(LVTBody(input_shape, width), 8 * width, num_classes)
    return net.to(memory_format=layout_for(width))  # type: ignore[call-overload, no-any-return]
