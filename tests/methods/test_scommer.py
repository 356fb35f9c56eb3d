"""SCoMMER: winners, rates and masks by hand, what counts, and when it is ER."""

from typing import Any

import pytest
import torch
from support.steps import Steps, batches_of, build, first_batch, first_task, learn, make_cnn, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch import nn

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods.k_winners import KWinners, num_channels, of_stages, replace_relus
from strongreplay.methods.scommer import SCoMMER, SCoMMERConfig
from strongreplay.nets import build_net
from strongreplay.protocol import derive_generator
from strongreplay.training.engine import train_task


def make(stream: Stream, net: nn.Module | None = None, **settings: Any) -> SCoMMER:
    config = SCoMMERConfig(**{"memory_size": 24} | settings)
    return SCoMMER(net or make_net(), make_problem(stream), config)


def resnet() -> Any:
    return build_net("resnet18", (1, 6, 6), 6, derive_generator(0, "net"), width=8)


def test_the_channels_with_the_largest_scores_stay_on() -> None:
    maps = torch.tensor([[3.0, 1.0, 2.0, 4.0], [-5.0, 1.0, 2.0, 0.5]])
    assert KWinners(0.5)(maps).tolist() == [
        [3, 0, 0, 4],
        [0, 0, 2, 0],
    ]  # negative winners become 0
    assert torch.equal(KWinners(1.0)(maps), maps.relu())
    images = torch.tensor([[[[3.0, -3.0]], [[2.0, 2.0]], [[5.0, 5.0]], [[0.0, 1.0]]]])
    assert KWinners(0.5)(images).flatten().tolist() == [3, 0, 0, 0, 5, 5, 0, 0]
    ties = torch.ones(1, 4)
    assert KWinners(0.5)(ties).sum() == 0  # strictly above


@pytest.mark.parametrize(("share", "won", "opened"), [(0.8, 409, 450), (0.9, 460, 506)])
def test_numbers_of_channels_of_512(share: float, won: int, opened: int) -> None:
    assert (num_channels(share, 512), min(512, num_channels(1.1 * share, 512))) == (won, opened)
    assert num_channels(0.9, 20) == 18
    assert of_stages((0.9, 0.9, 0.9, 0.8), 2) == (0.9, 0.8)
    assert of_stages((0.7,), 3) == (0.7, 0.7, 0.7)


def test_rates_of_counts_by_hand(stream: Stream) -> None:
    usage = make(stream, alpha_layer=0.5, alpha_class=2.0).usage
    usage.counts = torch.tensor([0, 5, 10])
    usage.class_counts = torch.tensor([[0, 5, 10], [0, 0, 0]])
    usage.refresh_layer()
    usage.refresh_classes()
    assert usage.keep.tolist() == pytest.approx([1, 0.7788, 0.6065], abs=1e-4)
    assert usage.class_keep[0].tolist() == pytest.approx([0, 0.6321, 0.8647], abs=1e-4)
    assert torch.equal(usage.class_keep[1], torch.zeros(3))


def test_a_new_class_has_the_layers_mask_and_samples_of_a_class_share_theirs(stream: Stream) -> None:
    usage = make(stream, winners=(0.5,)).usage
    assert usage.num_open == 17  # of 32, times 1.1
    labels, maps = torch.tensor([0, 1, 0, 2]), torch.ones(4, 32)
    mask = usage.mask(labels, maps)
    assert mask.sum(1).tolist() == [17] * 4
    assert torch.equal(mask[0], mask[1])
    usage.class_keep[0] = 0.5
    mask = usage.mask(labels, maps)
    assert torch.equal(mask[0], mask[2])
    assert torch.equal(mask[1], mask[3])
    assert not torch.equal(mask[0], mask[1])
    assert usage.mask(labels, torch.ones(4, 32, 2, 2)).shape == (4, 32, 1, 1)


def test_the_layers_mask_is_a_weighted_draw_without_replacement(stream: Stream) -> None:
    usage, counts = make(stream, winners=(0.03,)).usage, torch.zeros(32)
    assert usage.num_open == 1
    usage.keep = torch.zeros(32)
    usage.keep[:3] = torch.tensor([1.0, 2.0, 5.0])
    for _ in range(2000):
        counts += usage.mask(torch.tensor([0]), torch.ones(1, 32))[0]
    assert (counts[:3] / 2000).tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.04)
    assert counts[3:].sum() == 0


def test_only_forward_passes_of_the_stream_count_and_drop(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    usage, inputs = method.usage, first_batch(stream).inputs
    assert usage.counts.sum() == usage.class_counts.sum() > 0
    assert usage.class_counts[2:].sum() == 0
    before, state = usage.counts.clone(), usage.generator.get_state()
    answers = method.eval().predict(inputs)
    assert torch.equal(method.predict(inputs), answers)
    method.train()
    method.replayed(8)
    assert torch.equal(usage.counts, before)
    assert torch.equal(usage.generator.get_state(), state)
    method.observe(first_batch(stream, 1), optimizer_of(method))
    assert usage.counts.sum() > before.sum()


def test_rates_follow_at_a_tasks_end_and_after_some_epochs_at_each_epochs_end(stream: Stream) -> None:
    method = make(stream, refresh_after=1)
    method.begin_task(stream[0])
    for epoch in range(3):
        assert method.usage.class_keep.sum() == 0
        for batch in batches_of(stream[0].train, stream):
            method.observe(batch, optimizer_of(method))
        assert (method.usage.class_keep.sum() > 0) == (epoch > 1)
    assert torch.equal(method.usage.keep, torch.ones(32))
    method.end_task(stream[0])
    assert (method.usage.keep < 1).any()


@pytest.mark.parametrize(("drop_last", "expected"), [(False, [8, 11, 12]), (True, [6, 8])])
def test_an_epoch_that_leaves_out_its_short_batch_ends_too(
    drop_last: bool, expected: list[int], stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 samples in batches of 28: three steps an epoch, or two. The last refresh is at the task's end."""
    method, steps = make(stream, refresh_after=1), Steps(lambda: done.append(0))
    done: list[int] = []
    refreshed: list[int] = []
    monkeypatch.setattr(method.usage, "refresh_classes", lambda: refreshed.append(len(done)))
    train_task(
        method, stream[0], stream.test_view, optimizer_of(method), epochs=4, batch_size=28,
        generator=derive_generator(0, "order"), drop_last=drop_last, listener=steps,
    )  # fmt: skip
    assert refreshed == expected  # steps that were done by then


def test_without_sparsity_and_consistency_it_is_er_with_two_means_to_the_bit(stream: Stream) -> None:
    method = make(stream, winners=(1.0,), penalty=0, rate=0, dropout=False, eval_net="working")
    er = build("er", make_problem(stream), loss="sum")
    learn(method, stream, epochs=1), learn(er, stream, epochs=1)
    assert torch.equal(weights(method.net), weights(er.net))


def test_resnet_has_winners_in_its_blocks_and_at_the_ends_of_its_stages() -> None:
    net, last = replace_relus(resnet(), (0.9, 0.9, 0.9, 0.8))
    stages: Any = net.body.stages
    assert sum(isinstance(module, KWinners) for module in net.modules()) == 12
    assert last is stages[3][2]
    assert (last.share, stages[2][0].inner.share) == (0.8, 0.9)
    assert all(isinstance(stage[0].outer, nn.Identity) for stage in stages)
    assert net(torch.rand(4, 1, 6, 6)).shape == (4, 6)
    plain = resnet()
    assert list(plain.state_dict()) == list(net.state_dict())
    with pytest.raises(ConfigError, match="scommer replaces the ReLU layers"):
        replace_relus(nn.Linear(2, 2), (1.0,))


def test_with_all_channels_on_a_resnet_differs_only_in_the_relu_after_blocks(stream: Stream) -> None:
    sparse, _ = replace_relus(resnet(), (1.0,))
    plain: Any = resnet()
    for stage in plain.body.stages:
        stage[0].outer = nn.Identity()  # the last block's ReLU is the stage's
    inputs = first_batch(stream).inputs
    assert torch.equal(sparse.eval()(inputs), plain.eval()(inputs))


@pytest.mark.slow
@pytest.mark.parametrize("make_deep", [resnet, make_cnn])
def test_convolutional_nets_learn_and_start_with_their_first_channels(make_deep: Any, stream: Stream) -> None:
    method = make(stream, make_deep(), winners=(0.5,))
    assert method.usage.keep.sum() == method.usage.num_open < len(method.usage.keep)
    learn(method, stream, epochs=1)
    method.grow(8, torch.Generator())
    terms = method.observe(first_batch(stream), optimizer_of(method))
    assert set(terms) == {"replay", "consistency", "current"}
    assert len(method.usage.class_keep) == 8
