"""PNN: old columns answer as they did, parameters counted by hand, laterals; one column is plain training."""

from typing import Any

import pytest
import torch
from support.steps import (
    final_weights,
    first_batch,
    learn,
    make_cnn,
    make_resnet,
    optimizer_of,
    state_bytes,
    tasks,
)
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, weights
from torch import Tensor, nn

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods import check_scenario
from strongreplay.methods.base import unchanged
from strongreplay.methods.pnn import PNN
from strongreplay.nets import Classifier, build_net
from strongreplay.protocol import Problem


def make(stream: Stream, net: Classifier | None = None) -> PNN:
    return PNN(net or make_net(), make_problem(stream))


def column_scores(method: PNN, inputs: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return method.eval().columns(inputs)


@pytest.mark.parametrize("net", [make_net, make_cnn, make_resnet])
def test_old_columns_answer_to_the_bit_as_they_did(net: Any, stream: Stream) -> None:
    method, inputs, known = make(stream, net()), first_batch(stream).inputs, list[Tensor]()
    for number, task in enumerate(stream):
        method.begin_task(task)
        frozen = {key: value for key, value in state_bytes(method).items() if key.startswith("frozen")}
        method.train()
        for _ in range(2):
            method.observe(first_batch(stream, number), optimizer_of(method))
        method.end_task(task)
        after = state_bytes(method)
        assert all(torch.equal(value, after[key]) for key, value in frozen.items())  # statistics too
        assert all(p.grad is None and not p.requires_grad for p in method.frozen.parameters())
        answers = column_scores(method, inputs)
        assert len(answers) == number + 1
        assert all(torch.equal(old, now) for old, now in zip(known, answers, strict=False))
        known = answers
    scores = method.predict(inputs)
    for number, task in enumerate(stream):
        own = list(task.classes)
        assert torch.equal(scores[:, own], known[number][:, own])


def test_parameters_of_the_first_two_columns_by_hand(stream: Stream) -> None:
    method = make(stream, build_net("mlp", (1, 28, 28), 10, torch.Generator()))
    assert sum(p.numel() for p in method.net.parameters()) == 89_610
    method.net.start(1, torch.Generator())
    assert sum(p.numel() for p in method.net.parameters()) == 89_610 + 31_400


def test_a_large_net_for_each_task_is_announced_before_a_run(stream: Stream) -> None:
    large = PNN(
        build_net("resnet18", (3, 32, 32), 100, torch.Generator()), Problem(100, 10, unchanged, unchanged)
    )
    assert large.notice() == "pnn keeps a net for each task: 10 tasks take at least 0.45 GB of weights"
    assert make(stream).notice() == ""


@pytest.mark.parametrize("net", [make_net, make_resnet])
def test_without_scale_a_column_stands_alone(net: Any, stream: Stream) -> None:
    method = make(stream, net())
    learn(method, tasks(stream, 1), epochs=1)
    method.begin_task(stream[1])
    inputs = first_batch(stream).inputs
    method.eval()
    joined, alone = method.columns(inputs)[-1], method.net.classifier(inputs)
    assert not torch.allclose(joined, alone)
    for lateral in method.net.laterals:
        nn.init.zeros_(lateral.scale)  # type: ignore[arg-type]
        for name, parameter in lateral.named_parameters():  # what is left is made by biases alone
            if name.endswith("join.bias") or "norm2" in name or "shortcut.1" in name:
                nn.init.zeros_(parameter)
    assert torch.allclose(method.columns(inputs)[-1], alone, atol=1e-6)


def test_the_lateral_of_an_mlp_is_the_formula_written_out(stream: Stream) -> None:
    method = make(stream)
    learn(method, tasks(stream, 1), epochs=1)
    method.begin_task(stream[1])
    inputs = first_batch(stream).inputs.flatten(1)
    first: Any = method.frozen.nets[0].copy
    body: Any = method.net.classifier.body
    laterals: list[Any] = list(method.net.laterals)
    one, two = laterals
    old1 = first.classifier.body[1](inputs).relu()
    old2 = first.classifier.body[3](old1).relu()
    h1 = body[1](inputs).relu()
    h2 = (body[3](h1) + one.out(one.join(one.scale * old1).relu())).relu()
    out = method.net.classifier.head(h2) + two.out(two.join(two.scale * old2).relu())
    assert torch.allclose(method.columns(first_batch(stream).inputs)[-1], out, atol=1e-6)
    assert 0 <= one.scale.min() <= one.scale.max() <= 0.1


def test_a_column_gets_what_the_one_before_computes_alone(stream: Stream) -> None:
    method = make(stream, make_cnn())
    learn(method, tasks(stream, 2), epochs=1)
    inputs = first_batch(stream).inputs
    before = column_scores(method, inputs)
    method.begin_task(stream[2])
    nets: list[Any] = list(method.frozen.nets)
    with torch.no_grad():
        logits, outputs = nets[0].copy(inputs, [])
        second, _ = nets[1].copy(inputs, [outputs])
    assert torch.equal(logits, before[0])
    assert torch.equal(second, before[1])


def test_one_column_is_sgd_to_the_bit(stream: Stream) -> None:
    one = Stream(stream.scenario, (tuple(range(NUM_CLASSES)),), stream.input_shape, stream.make)
    method = make(one)
    learn(method, one)
    assert torch.equal(weights(method.net), final_weights("sgd", one))


def test_only_classes_of_the_task_take_part(stream: Stream) -> None:
    method = make(stream)
    method.begin_task(stream[1])
    before = method.net.classifier.head.weight.detach().clone()
    method.observe(first_batch(stream, 1), optimizer_of(method))
    moved = (method.net.classifier.head.weight != before).any(1)
    assert moved.tolist() == [False, False, True, True, False, False]


def test_streams_without_tasks_and_nets_without_stages_are_refused(stream: Stream) -> None:
    check_scenario("pnn", "class-il", "seq-mnist")  # scored as Task-IL alone
    with pytest.raises(ConfigError, match="pnn needs the task of a sample"):
        check_scenario("pnn", "domain-il", "p-mnist")
    with pytest.raises(ConfigError, match="needs a net with known stages: mlp, cnn or resnet18"):
        make(stream, nn.Linear(36, 6))  # type: ignore[arg-type]
