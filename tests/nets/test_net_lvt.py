"""The net of LVT: parameter counts, attention against loops written out, dropout, and how it starts."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_stream import weights
from torch import Tensor, nn

from strongreplay.learner import Learner
from strongreplay.nets import build_net
from strongreplay.nets.lvt import (
    Dropout,
    ExternalAttention,
    LVTBody,
    LVTNet,
    Norm,
    TransformerBlock,
    distances,
)


def build(shape: tuple[int, ...] = (1, 6, 6), num_classes: int = 6, seed: int = 0, width: int = 4) -> LVTNet:
    net = build_net("lvt", shape, num_classes, torch.Generator().manual_seed(seed), width=width)
    assert isinstance(net, LVTNet)
    return net


def body_of(net: LVTNet) -> LVTBody:
    assert isinstance(net.body, LVTBody)
    return net.body


def attention_of(net: LVTNet) -> list[ExternalAttention]:
    return [module for module in net.modules() if isinstance(module, ExternalAttention)]


def weight_of(layer: nn.Module) -> Tensor:
    assert isinstance(layer, (nn.Linear, nn.Conv2d, Norm))
    return layer.weight


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def without_dropout(net: LVTNet) -> LVTNet:
    for module in net.modules():
        if isinstance(module, Dropout):
            module.rate = 0.0
    return net


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stir(module: nn.Module) -> None:
    """Random running statistics and affine parts, so that no norm is the identity."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for norm in module.modules():
            if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
                for part in (norm.weight, norm.bias, norm.running_mean):
                    assert part is not None
                    part.copy_(torch.randn(part.shape, generator=generator))
                assert norm.running_var is not None
                norm.running_var.copy_(torch.rand(norm.running_var.shape, generator=generator) + 0.5)


def test_parameter_counts_whole_and_by_part() -> None:
    net = build((3, 32, 32), 100, width=64)
    blocks = list(body_of(net).blocks)
    assert count(net) == 8_929_088
    assert count(body_of(net).stem) == 2_775_104
    assert [count(block) for block in blocks] == [461_824, 461_824, 1_644_544, 1_741_696, 1_741_696]
    assert count(net.head) + count(net.injection) == 102_400
    keys = [weight_of(layer.key[0]).numel() for layer in attention_of(net)]
    assert keys == [32_768, 32_768, 131_072, 32_768, 32_768]
    # weights, two affine vectors of heads * positions, and the tables
    norms = 2 * (256 + 256 + 512 + 128 + 128)
    assert sum(p.numel() for p in net.attention_parameters()) == sum(keys) + norms + 256 + 256 + 512 + 2 * 128
    assert count(build((3, 32, 32), 10, width=64)) == 8_836_928
    assert count(build((3, 64, 64), 200, width=64)) == 9_829_440


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 6, 6), (1, 8, 8), (2, 12, 20)])
def test_body_and_two_heads_at_any_size(shape: tuple[int, ...]) -> None:
    net = build(shape, 7)
    inputs = draw(3, *shape)
    features = net.features(inputs)
    assert features.shape == (3, net.head.in_features) == (3, 32)
    (net.head(features).sum() + net.injection(features).sum()).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert net.head.bias is None
    assert net.injection.bias is None
    assert torch.equal(net.eval()(inputs), net.head(net.features(inputs)))
    assert [layer.heads for layer in attention_of(net)] == [4, 4, 8, 8, 8]  # whatever the width


def test_tables_are_indexed_by_row_and_column_distance() -> None:
    places = distances((3, 3), 1)
    for query in range(9):
        for key in range(9):
            rows, columns = abs(query // 3 - key // 3), abs(query % 3 - key % 3)
            assert places[query, key] == 3 * rows + columns
    queries = [(row, column) for row in (0, 2, 4) for column in (0, 2)]  # every second position of 5 x 4
    expected = [[4 * abs(r - k // 4) + abs(c - k % 4) for k in range(20)] for r, c in queries]
    assert distances((5, 4), 2).tolist() == expected


@pytest.mark.parametrize("stride", [1, 2])
def test_attention_is_the_formula_written_out(stride: int) -> None:
    sides, heads, width = (3, 3), 2, 6
    layer = ExternalAttention(5, 4, sides, heads, width, stride).eval()
    stir(layer)
    rows = draw(2 * 9, 5)
    at = [0, 2, 6, 8] if stride == 2 else list(range(9))
    maps = rows.view(2, 9, 5)
    query, value = layer.query(rows).view(2, 9, heads * 3), layer.value(rows).view(2, 9, heads * width)
    expected = torch.zeros(2, len(at), heads * width)
    for image in range(len(maps)):
        for place, i in enumerate(at):
            products = layer.key(query[image, i][None])[0]  # (heads * 9,), no division by a square root
            for head in range(heads):
                scores = [
                    products[9 * head + j]
                    + layer.table[head, 3 * abs(i // 3 - j // 3) + abs(i % 3 - j % 3)] * 3**0.5
                    for j in range(9)
                ]
                shares = torch.stack(scores).exp()
                shares = shares / shares.sum()
                columns = slice(head * width, (head + 1) * width)
                expected[image, place, columns] = shares @ value[image, :, columns]
    expected = layer.norm(layer.out(nn.functional.gelu(expected.flatten(0, 1))))
    assert torch.allclose(layer(rows), expected, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_adds_attention_unless_it_shrinks_and_then_feed_forward(stride: int) -> None:
    block = TransformerBlock(4, 4, (2, 2), 2, 4, stride)
    stir(block)
    rows, asked = draw(4 * 3, 4), []
    block.dropout.register_forward_hook(lambda module, inputs, output: asked.append(tuple(output.shape)))
    block.eval()
    out = block.attention(rows)
    mixed = rows + out if stride == 1 else out
    expected = mixed + block.narrow(nn.functional.gelu(block.widen(mixed)))
    assert torch.allclose(block(rows), expected, atol=1e-6)
    count = 12 // stride**2
    assert asked == [(count, 4), (count, 8), (count, 4)]


def test_keys_do_not_depend_on_the_input() -> None:
    """Check b: two inputs with equal queries have equal scores, though their values differ."""
    layer = ExternalAttention(5, 4, (2, 2), 2, 4, 1).eval()
    stir(layer)
    with torch.no_grad():
        weight_of(layer.query[0])[:, :3] = 0
    first, second = draw(4, 5, seed=1), draw(4, 5, seed=2)
    second[:, 3:] = first[:, 3:]
    assert torch.equal(layer.scores(layer.query(first)), layer.scores(layer.query(second)))
    assert not torch.allclose(layer(first), layer(second))


def test_every_head_scores_with_the_queries_of_all() -> None:
    layer = ExternalAttention(5, 4, (2, 2), 2, 4, 1).eval()
    queries = draw(4, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(layer.scores(queries)[:, 0].sum(), queries)
    assert (gradient != 0).all()


def test_the_table_weighs_by_the_root_of_the_key_size() -> None:
    layer = attention_of(build((3, 32, 32), 10, width=64))[0]
    with torch.no_grad():
        weight_of(layer.key[1]).zero_()
        scores = layer.eval().scores(draw(64, 128))
    assert torch.allclose(scores[0, 3, 0, 9], layer.table[3, 9] * 32**0.5)  # positions (0, 0) and (1, 1)


def test_at_first_no_attention_passes_and_the_norm_that_stops_it_learns() -> None:
    net = build().eval()
    inputs = draw(5, 1, 6, 6)
    assert (net.features(inputs) - net.features(inputs)[:1]).abs().max() < 1e-6  # the shrink block hides all
    net.train()(inputs).square().sum().backward()
    scales = [layer.norm.weight for layer in attention_of(net)]
    assert not any(scale.any() for scale in scales)
    assert scales[2].grad is not None
    assert scales[2].grad.any()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), torch.arange(5)).backward()
        optimizer.step()
    assert net.eval().features(inputs).std(0).max() > 1e-3


def test_how_it_starts() -> None:
    net = build((3, 32, 32), 100, width=64)
    (conv,) = (m for m in net.modules() if isinstance(m, nn.Conv2d) and m.weight.shape == (256, 128, 3, 3))
    assert conv.weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    for head in (net.head, net.injection):
        assert head.weight.std().item() == pytest.approx(512**-0.5, rel=0.02)
    key = weight_of(attention_of(net)[0].key[0])
    assert 0.98 * 128**-0.5 < key.abs().max() <= 128**-0.5  # a linear layer's own start
    assert not torch.equal(net.head.weight, net.injection.weight)


def test_initial_weights_and_dropout_come_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    inputs = draw(4, 1, 6, 6)
    nets = [build(seed=seed) for seed in (1, 1, 2)]
    answers = [net.features(inputs) for net in nets]
    assert torch.equal(weights(nets[0]), weights(nets[1]))
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(weights(nets[0]), weights(nets[2]))
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_leaves_out_a_tenth_and_keeps_the_mean() -> None:
    dropout = Dropout(0.1)
    values = torch.ones(1001, 1003, requires_grad=True)
    dropped = dropout(values)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, dropped.detach())
    assert sorted(dropped.unique().tolist()) == pytest.approx([0, 1 / 0.9])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.1, abs=0.001)  # three standard errors
    assert (dropped == 0).float().mean(0).std().item() == pytest.approx((0.09 / 1001) ** 0.5, rel=0.1)
    assert not torch.equal(dropout(values), dropped)
    assert dropout.eval()(values) is values


def test_dropout_goes_on_where_its_state_was_saved_and_a_copy_draws_alone() -> None:
    net, values = build(), draw(8, 1, 6, 6)
    net.features(values)
    resumed = build(seed=5)
    resumed.load_state_dict(net.state_dict())
    copy = deepcopy(net)
    expected = net.features(values)
    assert torch.equal(resumed.features(values), expected)
    assert torch.equal(copy.features(values), expected)
    generators = [module.generator for module in net.modules() if isinstance(module, Dropout)]
    assert len({bytes(generator.get_state().numpy()) for generator in generators}) == 5


def test_a_single_row_is_answered_with_running_statistics() -> None:
    norm = Norm(3)
    stir(norm)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    row = draw(1, 3)
    assert torch.equal(norm.train()(row), norm.eval()(row))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    rows, plain = draw(4, 3), nn.BatchNorm1d(3)
    plain.load_state_dict(norm.state_dict())
    assert torch.equal(norm.train()(rows), plain(rows))
    assert build()(draw(1, 1, 6, 6)).isfinite().all()  # its last maps are 1 x 1


def test_attention_parameters_are_keys_norms_and_tables_and_nothing_else() -> None:
    net = build()
    named = {id(parameter): name for name, parameter in net.named_parameters()}
    found = [named[id(parameter)] for parameter in net.attention_parameters()]
    parts = ("key.0.weight", "key.1.weight", "key.1.bias", "table")
    assert sorted(found) == sorted(
        f"body.blocks.{block}.attention.{part}" for block in range(5) for part in parts
    )


@pytest.mark.parametrize("width", [1, 4, 7, 8, 20])
def test_any_width_survives_training(width: int) -> None:
    net = without_dropout(build((3, 16, 16), 4, width=width))
    for _ in range(2):
        net(draw(4, 3, 16, 16)).sum().backward()
    assert weights(net).isfinite().all()


@pytest.mark.slow
def test_a_kept_model_on_it_gets_more_classes_and_is_saved(tmp_path: Path) -> None:
    images = torch.randint(256, (24, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator())
    learner = Learner(net="lvt", epochs=1, settings={"net.width": 16})
    learner.learn(images, ["a", "b"] * 12)
    learner.learn(255 - images, ["c", "d"] * 12)
    learner.save(tmp_path / "kept")
    again = Learner.load(tmp_path / "kept")
    assert np.array_equal(again.predict_proba(images), learner.predict_proba(images))
    assert again.classes_.tolist() == list("abcd")
