"""DERNet: labels of the auxiliary head, frozen extractors, phases and rates; one task is plain training."""

from typing import Any

import pytest
import torch
from support.steps import build, first_batch, first_task, learn, make_cnn, optimizer_of, state_bytes
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, train_phase, weights
from torch import nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods.base import MAIN
from strongreplay.methods.dernet import DERNet, DERNetConfig, auxiliary_labels
from strongreplay.nets import Classifier
from strongreplay.sampling import balanced_rows
from strongreplay.training.settings import TrainConfig


def make(stream: Stream, net: Classifier | None = None, **settings: Any) -> DERNet:
    config = DERNetConfig(**{"memory_size": 24, "head_epochs": 2} | settings)
    return DERNet(net or make_net(), make_problem(stream), config)


def test_labels_of_the_auxiliary_head_by_hand() -> None:
    assert auxiliary_labels(6, [4, 5])[torch.tensor([1, 4, 5])].tolist() == [0, 1, 2]


def test_a_new_extractor_answers_as_the_last_one_and_earlier_ones_never_change(stream: Stream) -> None:
    method = make(stream, make_cnn())
    for number, task in enumerate(stream):
        before = state_bytes(method)
        method.begin_task(task)
        inputs = first_batch(stream, number).inputs
        method.eval()
        with torch.no_grad():
            parts = [*method.frozen.each_features(inputs), method.net.live.features(inputs)]
            width = method.all_features(inputs).shape[1]
        assert width == (number + 1) * parts[0].shape[1] == method.net.weight.shape[1]
        if number:
            assert torch.equal(parts[-1], parts[-2])
        frozen = {key: value for key, value in state_bytes(method).items() if key.startswith("frozen")}
        method.train()
        for _ in range(2):
            method.observe(first_batch(stream, number), optimizer_of(method))
        method.end_task(task)
        after = state_bytes(method)
        assert all(torch.equal(value, after[key]) for key, value in frozen.items())  # statistics too
        assert all(p.grad is None and not p.requires_grad for p in method.frozen.parameters())
        changed = "net.live.body.layers.0.0.weight"
        assert not torch.equal(before[changed], after[changed])
    assert method.net.auxiliary.shape[0] == 3  # two new classes, and one place for all old ones


def test_the_loss_is_that_of_seen_classes_and_of_the_auxiliary_head(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    batch = first_batch(stream, 1)
    newest, all_of_them = method.net.live.features(batch.inputs), method.all_features(batch.inputs)
    plain = cross_entropy((all_of_them @ method.net.weight.t())[:, :4], batch.labels)
    told = cross_entropy(newest @ method.net.auxiliary.t(), batch.labels - 1)  # 2, 3 -> 1, 2
    terms = method.observe(batch, optimizer_of(method))
    assert terms["current"].item() == pytest.approx(plain.item(), rel=1e-6)
    assert terms["auxiliary"].item() == pytest.approx(told.item(), rel=1e-6)


def test_the_rate_warms_up_and_then_heads_start_anew(stream: Stream) -> None:
    method = make(stream, warmup_epochs=10)
    warm_up, main = method.phases(stream[0])
    assert warm_up.rate
    after = TrainConfig(lr=0.1, milestones=(100, 120), epochs=160).rate_of(1)
    assert after
    found = [warm_up.rate(epoch, 0.5) for epoch in (0, 4, 9)] + [after(0, 0.5)]
    assert found == pytest.approx([0.01, 0.05, 0.1, 0.1])
    assert [after(epoch, 0) for epoch in (99, 100, 120)] == pytest.approx([0.1, 0.01, 0.001])
    assert main.name == MAIN
    assert main.begin
    before, body = method.net.weight.detach().clone(), weights(method.net.live)
    main.begin()
    assert not torch.equal(before, method.net.weight)
    assert torch.equal(body, weights(method.net.live))


def test_the_classifier_alone_is_trained_on_equally_many_samples_of_each_class(stream: Stream) -> None:
    method = make(stream, make_cnn())
    learn(method, first_task(stream), epochs=1)
    assert [phase.name for phase in method.phases(stream[0])] == [MAIN, "classifier"]
    task = method.begin_task(stream[1])
    assert len(task.train) == 80 + 24
    method.observe(first_batch(stream, 1), optimizer_of(method))
    before = {key: value for key, value in state_bytes(method).items() if "live" in key}
    weight = method.net.weight.detach().clone()
    train_phase(method, task, "classifier")
    after = state_bytes(method)
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert not torch.equal(weight, method.net.weight)
    assert task.train.labels[method.subset].bincount().tolist() == [12, 12, 12, 12]


def test_balanced_rows_are_cut_to_the_smallest_class() -> None:
    labels = torch.tensor([3, 0, 0, 3, 0, 0, 3])
    rows = balanced_rows(labels, torch.Generator().manual_seed(0))
    assert labels[rows].bincount().tolist() == [3, 0, 0, 3]
    assert len(rows.unique()) == 6


def test_one_task_is_plain_training_of_a_net_without_bias_to_the_bit(stream: Stream) -> None:
    task = Stream(stream.scenario, (tuple(range(NUM_CLASSES)),), stream.input_shape, stream.make)
    plain = make_net()
    plain.head.bias = None  # type: ignore[assignment]
    sgd, expanding = build("sgd", make_problem(task), net=plain), make(task)
    learn(sgd, task), learn(expanding, task)
    assert torch.equal(weights(plain.body), weights(expanding.net.live.body))
    assert torch.equal(plain.head.weight, expanding.net.weight)


def test_a_memory_smaller_than_the_number_of_classes_is_refused(stream: Stream) -> None:
    with pytest.raises(ConfigError, match="one sample per class"):
        make(stream, memory_size=5)


def test_any_net_with_a_head_will_do(stream: Stream) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, NUM_CLASSES))
    method = DERNet(net, make_problem(stream), DERNetConfig(memory_size=24, head_epochs=1))
    learn(method, stream, epochs=1)
    assert method.predict(first_batch(stream).inputs).shape == (16, NUM_CLASSES)
