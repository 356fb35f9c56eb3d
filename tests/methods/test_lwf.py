"""LwF: distillation, warm-up of new head rows, and which answer belongs to which image."""

from typing import Any

import pytest
import torch
from support.steps import count_passes, first_batch, first_task, learn, make_resnet, optimizer_of
from support.tiny_stream import NUM_CLASSES, begin_learning, make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream, split_by_class
from strongreplay.data.views import normalise
from strongreplay.errors import ConfigError
from strongreplay.methods import check_scenario
from strongreplay.methods.distillation import distill, only, soften
from strongreplay.methods.lwf import LwF, LwFConfig
from strongreplay.protocol import Batch, Problem, Split, derive_generator

OLD = torch.tensor([True, True, False, False, False, False])


def build(
    stream: Stream, net: nn.Module | None = None, problem: Problem | None = None, **settings: Any
) -> LwF:
    return LwF(net or make_net(), problem or make_problem(stream), LwFConfig(**settings))


def test_the_same_answers_cost_their_entropy_and_have_no_gradient() -> None:
    logits = torch.randn(5, 6, requires_grad=True)
    loss = distill(logits, soften(logits.detach(), only(OLD), 2.0), only(OLD), 2.0)
    chances = (logits[:, :2] / 2).softmax(1)
    assert loss.item() == pytest.approx(-(chances * chances.log()).sum(1).mean().item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() < 1e-7


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_distillation_is_the_softened_cross_entropy_over_old_columns(temperature: float) -> None:
    logits, old_logits = torch.randn(7, 6, requires_grad=True), torch.randn(7, 6)
    wanted = (old_logits[:, :2] / temperature).softmax(1)
    expected = -(wanted * (logits[:, :2] / temperature).log_softmax(1)).sum(1).mean()
    got = distill(logits, soften(old_logits, only(OLD), temperature), only(OLD), temperature)
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(got, logits)
    assert (gradient[:, 2:] == 0).all()
    # mammoth raises probabilities to 1/T and divides by their sum: the same thing
    powered = old_logits[:, :2].softmax(1) ** (1 / temperature)
    assert torch.allclose(wanted, powered / powered.sum(1, keepdim=True), atol=1e-6)


def test_restricted_cross_entropy_is_that_of_the_columns_alone() -> None:
    logits = torch.randn(4, 6)
    labels = torch.tensor([0, 1, 1, 0])
    assert torch.equal(cross_entropy(logits + only(OLD), labels), cross_entropy(logits[:, :2], labels))


def test_with_both_weights_zero_it_is_sgd_among_seen_classes_to_the_bit(stream: Stream) -> None:
    method = build(stream, alpha=0, l2=0, warmup_epochs=0)
    learn(method, stream)
    net, order = make_net(), derive_generator(0, "order")
    for number, task in enumerate(stream):
        optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1), 2 * (number + 1)
        for _ in range(4):
            for rows in torch.randperm(80, generator=order).split(16):
                optimizer.zero_grad()
                logits = net(stream.test_view(task.train.inputs[rows]))
                hidden = torch.full_like(logits[:, seen:], -torch.inf)
                cross_entropy(torch.cat([logits[:, :seen], hidden], 1), task.train.labels[rows]).backward()
                optimizer.step()
    assert torch.equal(weights(method.net), weights(net))


def test_one_step_has_the_gradient_of_all_three_terms(stream: Stream) -> None:
    method = build(stream, alpha=3.0, l2=5e-4, warmup_epochs=0)
    learn(method, first_task(stream))
    begin_learning(method, stream[1])
    assert method.targets is not None
    batch = first_batch(stream, 1)
    logits = method.net(batch.inputs)
    wanted = method.targets[batch.rows, :2]
    old = -(wanted * (logits[:, :2] / 2).log_softmax(1)).sum(1).mean()
    squares = sum((p**2).sum() for p in method.net.parameters())
    loss = cross_entropy(logits[:, :4], batch.labels) + 3.0 * old + 5e-4 * squares
    parts = torch.autograd.grad(loss, list(method.net.parameters()))
    before = weights(method.net)
    terms = method.observe(batch, optimizer_of(method, lr=1.0))
    assert list(terms) == ["current", "distillation", "l2"]
    assert sum(terms.values()).item() == pytest.approx(loss.item(), rel=1e-5)  # type: ignore[union-attr]
    expected = before - torch.cat([part.flatten() for part in parts])
    assert torch.allclose(weights(method.net), expected, atol=1e-6)


def test_the_first_task_has_no_warm_up_and_no_targets(stream: Stream) -> None:
    method = build(stream)
    before, task = weights(method.net), stream[0]
    assert begin_learning(method, task) is task
    assert torch.equal(before, weights(method.net))
    assert method.targets is None
    assert list(method.observe(first_batch(stream), optimizer_of(method))) == ["current", "l2"]


def test_warm_up_moves_the_new_rows_of_the_head_and_nothing_else(stream: Stream) -> None:
    method = build(stream, net=make_resnet(), warmup_epochs=2, warmup_lr=0.5)
    learn(method, first_task(stream), epochs=1)
    method.train()
    before = {name: value.clone() for name, value in method.net.state_dict().items()}
    begin_learning(method, stream[1])
    after = method.net.state_dict()
    for name, value in before.items():
        if name.startswith("head"):
            assert torch.equal(after[name][[0, 1, 4, 5]], value[[0, 1, 4, 5]])
            assert not torch.equal(after[name][[2, 3]], value[[2, 3]])
        else:  # weights and running statistics
            assert torch.equal(after[name], value), name
    assert all(module.training for module in method.net.modules())


def test_warm_up_lowers_the_loss_among_new_columns(stream: Stream) -> None:
    losses = []
    for epochs in (0, 20):
        method = build(stream, warmup_epochs=epochs, warmup_lr=0.3)
        learn(method, first_task(stream))
        begin_learning(method, stream[1])
        train = stream[1].train
        logits = method.net(stream.test_view(train.inputs))[:, 2:4]
        losses.append(cross_entropy(logits, train.labels - 2).item())
    assert losses[1] < 0.9 * losses[0]


def test_warm_up_without_a_new_class_changes_nothing(stream: Stream) -> None:
    method = build(stream)
    learn(method, first_task(stream))
    before = weights(method.net)
    begin_learning(method, stream[0])
    assert torch.equal(before, weights(method.net))
    assert method.targets is not None


def recorded(stream: Stream, order: Tensor, **settings: Any) -> Tensor:
    """The old answers when the task's images are stored in another order."""
    method = build(stream, warmup_epochs=0, **settings)
    learn(method, first_task(stream))
    task = stream[1]
    begin_learning(method, task.with_train(task.train.take(order)))
    assert method.targets is not None
    return method.targets


def test_an_image_keeps_its_target_whatever_the_order(stream: Stream) -> None:
    order = torch.randperm(80, generator=torch.Generator().manual_seed(3))
    straight, shuffled = recorded(stream, torch.arange(80)), recorded(stream, order)
    assert torch.allclose(straight[order], shuffled, atol=1e-6)


def test_the_loss_looks_targets_up_by_row(stream: Stream) -> None:
    """The same images met in any order of the loader cost the same."""
    costs = []
    for rows in (torch.arange(16), torch.arange(16).flip(0)):
        method = build(stream, warmup_epochs=0, alpha=1.0)
        learn(method, first_task(stream))
        begin_learning(method, stream[1])
        split = stream[1].train
        assert method.targets is not None
        assert len(method.targets.unique(dim=0)) == 80  # a wrong row would show
        images = split.inputs[rows]
        batch = Batch(rows, images, stream.test_view(images), split.labels[rows])
        costs.append(method.observe(batch, optimizer_of(method))["distillation"].item())
    assert costs[0] == pytest.approx(costs[1], rel=1e-5)


def test_targets_are_plain_answers_to_normalised_images_or_bare_pixels_by_a_switch(
    train_split: Split, test_split: Split
) -> None:
    plain = split_by_class(train_split, test_split, NUM_CLASSES, 3)
    view = normalise((0.3,), (0.2,))
    stream = Stream(
        plain.scenario, plain.task_classes, plain.input_shape, plain.make, lambda generator: view, view
    )
    for targets, shown in (("normalised", view), ("raw", lambda images: images.float() / 255)):
        method = build(stream, net=make_resnet(), warmup_epochs=0, targets=targets)
        learn(method, first_task(stream), epochs=1)
        begin_learning(method, stream[1])
        method.eval()
        with torch.no_grad():
            expected = (method.net(shown(stream[1].train.inputs))[:, :2] / 2).softmax(1)
        assert method.targets is not None
        assert torch.allclose(method.targets[:, :2], expected, atol=1e-5)
        assert (method.targets[:, 2:] == 0).all()


def test_targets_are_dropped_at_the_end_of_a_task(stream: Stream) -> None:
    method = build(stream)
    learn(method, stream, epochs=1)
    assert method.targets is None
    assert method.old.all()


def test_a_step_costs_one_forward_and_one_backward(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(stream)
    learn(method, first_task(stream), epochs=1)
    begin_learning(method, stream[1])
    batch, optimizer = first_batch(stream, 1), optimizer_of(method)
    assert count_passes(method, monkeypatch, lambda: method.observe(batch, optimizer)) == (1, 1)


def test_what_it_cannot_do_is_said(stream: Stream) -> None:
    with pytest.raises(
        ConfigError,
        match=r"lwf needs the features of its net: no linear layer .* with --set net\.head",
    ):
        LwF(nn.Linear(3, 6), make_problem(stream))
    with pytest.raises(ConfigError, match="lwf needs disjoint classes per task; p-mnist is Domain-IL"):
        check_scenario("lwf", "domain-il", "p-mnist")
