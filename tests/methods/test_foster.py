"""FOSTER: class weights and targets by hand, what both phases start from, and who changes what."""

from typing import Any

import pytest
import torch
from support.steps import final_weights, first_batch, first_task, learn, make_cnn, optimizer_of, state_bytes
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, train_phase, weights
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods.base import MAIN
from strongreplay.methods.foster import FOSTER, FOSTERConfig
from strongreplay.methods.foster_parts import class_weights, cosine_rate, reweighted
from strongreplay.nets import Classifier


def make(stream: Stream, net: Classifier | None = None, **settings: Any) -> FOSTER:
    config = FOSTERConfig(**{"memory_size": 24, "compress_epochs": 2} | settings)
    return FOSTER(net or make_net(), make_problem(stream), config)


def boosting(stream: Stream, **settings: Any) -> FOSTER:
    """At the beginning of the second task."""
    method = make(stream, make_cnn(), **settings)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    return method


def test_class_weights_by_hand() -> None:
    counts = torch.tensor([20, 20, 500, 500], dtype=torch.float64)
    found = class_weights(counts, 0.97).tolist()
    assert found == pytest.approx([1.373432, 1.373432, 0.626568, 0.626568], abs=1e-6)
    assert class_weights(torch.tensor([0.0, 1e9]), 0.97).isfinite().all()


def test_targets_of_the_compression_by_hand() -> None:
    found = reweighted(torch.tensor([[0.5, 0.5]]), torch.tensor([1.5, 0.5]))
    assert found[0].tolist() == pytest.approx([0.75, 0.25])
    assert [cosine_rate(0.1, 10, epoch, 0) for epoch in (0, 5)] == pytest.approx([0.1, 0.05])


def test_boosting_starts_from_the_old_net(stream: Stream) -> None:
    method = boosting(stream)
    inputs, old, wide = first_batch(stream).inputs, method.boosted.old.copy, method.net.wide
    assert wide is not None
    assert old is not None
    method.eval()
    with torch.no_grad():
        features = method.boosted.old_features(inputs)
        assert torch.equal(features, method.net.live.features(inputs))
        alone = wide(torch.cat([features, torch.zeros_like(features)], 1))
        assert torch.allclose(alone[:, :2], old(inputs)[:, :2], atol=1e-6)
        assert not torch.allclose(alone[:, 2:], old(inputs)[:, 2:], atol=1e-2)


def test_the_terms_of_boosting_written_out(stream: Stream) -> None:
    method, batch = boosting(stream, boost_beta=(0.9, 0.5)), first_batch(stream, 1)
    assert method.divisors[:4].tolist() == pytest.approx(
        class_weights(torch.tensor([12.0, 12, 40, 40]), 0.9).tolist()
    )
    assert method.divisors[:2].min() > 1 > method.divisors[2:4].max()
    old = method.boosted.old_features(batch.inputs)
    new, wide = method.net.live.features(batch.inputs), method.net.wide
    assert wide
    logits, answers = wide(torch.cat([old, new], 1)), method.old_head(old)
    assert torch.equal(method.divisors[4:], torch.ones(2))
    expected = {
        "current": cross_entropy((logits / method.divisors)[:, :4], batch.labels),
        "new": cross_entropy(method.net.live.head(new)[:, :4], batch.labels),
        "distillation": -((answers[:, :2] / 2).softmax(1) * (logits[:, :2] / 2).log_softmax(1)).sum(1).mean(),
    }
    found = {name: term.item() for name, term in method.observe(batch, optimizer_of(method)).items()}
    # A second forward pass changes batch-norm statistics, not the batch's outputs.
    assert found == pytest.approx({name: term.item() for name, term in expected.items()}, rel=1e-5)


def test_the_old_net_is_constant_and_compression_starts_from_it(stream: Stream) -> None:
    method = boosting(stream)
    task = method.begin_task(stream[1])
    frozen = {key: value for key, value in state_bytes(method).items() if key.startswith("boosted.old")}
    for _ in range(2):
        method.observe(first_batch(stream, 1), optimizer_of(method))
    boosted = weights(method.net.live)
    assert [phase.name for phase in method.phases(task)] == [MAIN, "compression"]
    method.begin_compression()
    inputs, old = first_batch(stream).inputs, method.boosted.old.copy
    assert old is not None
    method.eval()
    with torch.no_grad():
        assert torch.equal(method.net(inputs)[:, :2], old(inputs)[:, :2])
    assert torch.equal(weights(method.boosted.new)[: len(boosted)], boosted)  # the teacher is the boosted net
    before = state_bytes(method)
    method.compress(first_batch(stream, 1), optimizer_of(method))
    after = state_bytes(method)
    assert all(torch.equal(value, after[key]) for key, value in frozen.items())
    moved = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert moved == {"net"}


def test_labels_are_not_read_in_the_compression(stream: Stream) -> None:
    method = boosting(stream)
    method.begin_compression()
    batch, before = first_batch(stream, 1), weights(method.net)
    state = state_bytes(method)
    method.compress(batch, optimizer_of(method))
    moved = weights(method.net)
    method.load_state_dict(state, strict=False)
    assert torch.equal(weights(method.net), before)
    method.compress(
        type(batch)(batch.rows, batch.images, batch.inputs, batch.labels.flip(0)), optimizer_of(method)
    )
    assert torch.equal(weights(method.net), moved)


def test_after_a_task_the_net_is_one_net(stream: Stream) -> None:
    method, plain = make(stream), make_net()
    learn(method, stream, epochs=1)
    assert len(weights(method.net)) == len(weights(plain))
    inputs = first_batch(stream).inputs
    scores = {name: net(inputs) for name, net in method.predictors().items()}
    assert scores["boosted"].shape == scores["compressed"].shape == (16, NUM_CLASSES)
    assert torch.equal(method.predict(inputs), scores["compressed"])


def test_the_first_task_is_sgd_to_the_bit(stream: Stream) -> None:
    one = Stream(stream.scenario, (tuple(range(NUM_CLASSES)),), stream.input_shape, stream.make)
    method = make(one)
    learn(method, one)
    assert torch.equal(weights(method.net), final_weights("sgd", one))
    assert [phase.name for phase in make(one).phases(one[0])] == [MAIN]


def test_a_phase_of_compression_trains(stream: Stream) -> None:
    method = boosting(stream)
    task = method.begin_task(stream[1])
    train_phase(method, task, "compression")
    assert method.net.wide is None
