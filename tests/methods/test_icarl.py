"""iCaRL: herding, exemplar quotas, targets of the binary loss, and the nearest mean of exemplars."""

from typing import Any

import pytest
import torch
from support.steps import count_passes, first_batch, learn, optimizer_of, tasks
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, weights
from torch import Tensor, nn

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods import check_scenario
from strongreplay.methods.icarl import ICaRL, ICaRLConfig, binary
from strongreplay.nets import Classifier, build_net
from strongreplay.protocol import Batch, Problem, Split, Task, derive_generator
from strongreplay.sampling import first_of_each, herd
from strongreplay.training.engine import evaluate, train_task


def build(stream: Stream, **settings: Any) -> ICaRL:
    return ICaRL(make_net(), make_problem(stream), ICaRLConfig(**({"memory_size": 24} | settings)))


def counts(method: ICaRL) -> list[int]:
    return torch.bincount(method.memory.rows.labels, minlength=NUM_CLASSES).tolist()


def test_herding_by_hand() -> None:
    features = torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0]])
    assert features[herd(features, 5)].flatten().tolist() == [3, 2, 1, 10, 0]
    assert herd(features, 9).tolist() == [3, 2, 1, 4, 0]
    assert herd(features, 0).tolist() == []


def test_herding_is_the_greedy_search_and_its_beginning_is_the_shorter_choice() -> None:
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    expected: list[int] = []
    for size in range(1, 11):
        left = [row for row in range(30) if row not in expected]
        expected.append(
            min(left, key=lambda row: (features.mean(0) - features[[*expected, row]].sum(0) / size).norm())
        )
    assert herd(features, 10).tolist() == expected
    assert herd(features, 4).tolist() == expected[:4]


def test_the_first_of_each_group_in_stored_order() -> None:
    groups = torch.tensor([5, 1, 5, 1, 1, 7])
    assert first_of_each(groups, 2).tolist() == [1, 3, 0, 2, 5]
    assert first_of_each(groups, 0).tolist() == []


def test_every_class_has_its_quota_and_shrinking_keeps_the_best(stream: Stream) -> None:
    method = build(stream, memory_size=25)
    learn(method, tasks(stream, 1), epochs=1)
    assert counts(method) == [12, 12, 0, 0, 0, 0]
    first = {c: method.memory.rows.images[method.memory.rows.labels == c].clone() for c in (0, 1)}
    for number, quota in ((1, 6), (2, 4)):
        optimizer = optimizer_of(method)
        train_task(
            method, stream[number], stream.test_view, optimizer, epochs=1, batch_size=16,
            generator=torch.Generator(),
        )  # fmt: skip
        assert counts(method) == [quota] * (2 * number + 2) + [0] * (4 - 2 * number)
        for label, images in first.items():
            kept = method.memory.rows.images[method.memory.rows.labels == label]
            assert torch.equal(kept, images[:quota])


def test_exemplars_are_herded_by_plain_features_in_evaluation_mode(stream: Stream) -> None:
    net = build_net("resnet18", (1, 6, 6), NUM_CLASSES, derive_generator(0, "net"), width=4)
    method = ICaRL(net, make_problem(stream), ICaRLConfig(memory_size=10))
    learn(method, tasks(stream, 1), epochs=1)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    images = stream[0].train.inputs[stream[0].train.labels == 1]
    with torch.no_grad():
        features = net.eval().features(stream.test_view(images))
    expected = images[herd(features / features.norm(dim=1, keepdim=True), 5)]
    stored = method.memory.rows.images[method.memory.rows.labels == 1]
    assert torch.equal(stored, expected)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_exemplars_join_the_next_task_as_they_were_met(stream: Stream) -> None:
    method = build(stream)
    task = stream[0]
    assert method.begin_task(task) is task
    learn(method, tasks(stream, 1), epochs=1)
    joined = method.begin_task(stream[1]).train
    assert len(joined) == 80 + 24
    assert torch.equal(joined.inputs[80:], method.memory.rows.images)
    assert torch.equal(joined.labels[80:], method.memory.rows.labels)


def test_targets_by_hand(stream: Stream) -> None:
    """Old columns want the old net's answer for every image, new ones the label; an exemplar wants no new."""
    method = build(stream, l2=0)
    learn(method, tasks(stream, 1))
    method.begin_task(stream[1])
    for _ in range(3):  # so that live and old net differ
        method.observe(first_batch(stream, 1), optimizer_of(method))
    old, new = first_batch(stream, 0, 4), first_batch(stream, 1, 4)
    both = Batch(
        torch.arange(8), torch.cat([old.images, new.images]), torch.cat([old.inputs, new.inputs]),
        torch.cat([old.labels, new.labels]),
    )  # fmt: skip
    logits = method.net(both.inputs).detach()[:, :4].sigmoid()
    wanted = torch.zeros(8, 4)
    wanted[:, :2] = method.old_net(both.inputs)[:, :2].sigmoid()
    wanted[range(4, 8), new.labels] = 1
    assert (wanted[:4, 2:] == 0).all()
    expected = -(wanted * logits.log() + (1 - wanted) * (1 - logits).log()).mean()
    terms = method.observe(both, optimizer_of(method))
    assert list(terms) == ["binary"]
    assert terms["binary"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_first_task_wants_the_labels_alone_and_weighs_the_squared_weights(stream: Stream) -> None:
    method = build(stream, l2=0.01)
    method.begin_task(stream[0])
    batch = first_batch(stream)
    logits = method.net(batch.inputs)[:, :2]
    expected = nn.functional.binary_cross_entropy_with_logits(
        logits, torch.nn.functional.one_hot(batch.labels, 2).float()
    )
    squares = weights(method.net).square().sum()
    terms = method.observe(batch, optimizer_of(method))
    assert terms["binary"].item() == pytest.approx(expected.item(), rel=1e-6)
    assert terms["l2"].item() == pytest.approx(0.01 * squares.item(), rel=1e-5)


def test_answers_as_wanted_have_no_gradient_and_unseen_columns_never_have() -> None:
    logits = torch.randn(5, 6, requires_grad=True)
    columns = torch.tensor([True] * 4 + [False] * 2)
    (gradient,) = torch.autograd.grad(binary(logits, logits.detach().sigmoid(), columns), logits)
    assert gradient.abs().max() < 1e-7
    (gradient,) = torch.autograd.grad(binary(logits, torch.ones(5, 6), columns), logits)
    assert (gradient[:, :4] < 0).all()
    assert (gradient[:, 4:] == 0).all()


def gaussians(count: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(4).repeat(count)
    centres = torch.tensor([[5.0, 0.0], [0.0, 5.0], [-5.0, 0.0], [0.0, -5.0]])
    return Split(centres[labels] + 0.3 * torch.randn(len(labels), 2, generator=generator), labels)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_nearest_mean_tells_well_separated_gaussians_apart(normalised: bool) -> None:
    net = Classifier(nn.Identity(), 2, 4)
    problem = Problem(4, 1, lambda x: x, lambda x: x)
    method = ICaRL(net, problem, ICaRLConfig(memory_size=20, normalise_features=normalised))
    task = Task(0, (0, 1, 2, 3), gaussians(30, 1), gaussians(50, 2))
    method.begin_task(task)
    method.end_task(task)
    assert evaluate(method, task.test, lambda x: x, (0, 1, 2, 3), (1, 2)) == [100, 50]
    scores = method.predict(task.test.inputs)
    means = torch.stack(
        [method.direct(method.memory.rows.images[method.memory.rows.labels == c]).mean(0) for c in range(4)]
    )
    shown = method.direct(task.test.inputs)
    expected = -(shown[:, None] - method.direct(means)).square().sum(2)
    assert torch.allclose(scores, expected, atol=1e-4)


def test_the_linear_head_has_no_say_in_predictions(stream: Stream) -> None:
    method = build(stream)
    learn(method, stream, epochs=1)
    inputs = stream.test_view(stream.test(0).inputs)
    before = method.eval().predict(inputs)
    with torch.no_grad():
        method.net.head.bias.add_(3.0)
        method.net.head.weight.mul_(-1.0)
    method.means = None
    assert torch.equal(method.predict(inputs), before)


def test_means_are_made_once_and_forgotten_with_every_step(stream: Stream) -> None:
    method = build(stream)
    learn(method, tasks(stream, 1), epochs=1)
    made: list[tuple[Tensor, Tensor]] = []
    make = method.class_means

    def spy() -> tuple[Tensor, Tensor]:
        made.append(make())
        return made[-1]

    method.class_means = spy  # type: ignore[method-assign]
    inputs = stream.test_view(stream.test(0).inputs)
    method.predict(inputs), method.predict(inputs)
    assert len(made) == 1
    method.observe(first_batch(stream, 1), optimizer_of(method))
    fresh = build(stream)
    fresh.load_state_dict(method.state_dict())
    assert torch.equal(method.eval().predict(inputs), fresh.eval().predict(inputs))
    assert len(made) == 2
    assert not any("means" in key for key in method.state_dict())


def test_loading_forgets_the_means_of_the_state_before(stream: Stream) -> None:
    method, other = build(stream), build(stream)
    learn(method, stream, epochs=1), learn(other, stream, epochs=3)
    inputs = stream.test_view(stream.test(0).inputs)
    with torch.no_grad():
        method.eval().predict(inputs)
        method.load_state_dict(other.state_dict())
        assert torch.equal(method.predict(inputs), other.eval().predict(inputs))


def test_without_exemplars_the_net_answers_and_a_class_without_any_comes_last(stream: Stream) -> None:
    method = build(stream)
    inputs = stream.test_view(stream.test(0).inputs)
    assert torch.equal(method.predict(inputs), method.net(inputs))
    learn(method, tasks(stream, 1), epochs=1)
    scores = method.eval().predict(inputs)
    assert scores.isfinite().all()
    assert (scores[:, :2].min() > scores[:, 2:].max()).all()


def test_mirrored_exemplars_join_the_means_by_a_switch(stream: Stream) -> None:
    plain, mirrored = build(stream), build(stream, flip_means=True)
    learn(plain, tasks(stream, 1), epochs=1), learn(mirrored, tasks(stream, 1), epochs=1)
    images, labels = plain.memory.rows
    both = torch.stack([plain.features(images), plain.features(images.flip(-1))]).mean(0)[labels == 1].mean(0)
    assert torch.allclose(mirrored.class_means()[0][1], both / both.norm(), atol=1e-6)
    assert not torch.allclose(plain.class_means()[0], mirrored.class_means()[0])


def test_a_class_met_again_is_herded_anew_from_its_images_and_exemplars(stream: Stream) -> None:
    method = build(stream)
    learn(method, tasks(stream, 2), epochs=1)
    optimizer = optimizer_of(method)
    few = stream[0].with_train(stream[0].train.take(torch.arange(1)))
    train_task(method, few, stream.test_view, optimizer, epochs=1, batch_size=16, generator=torch.Generator())
    assert counts(method) == [6, 6, 6, 6, 0, 0]


def test_a_step_costs_two_forwards_and_one_backward(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(stream)
    learn(method, tasks(stream, 1), epochs=1)
    batch, optimizer, asked = first_batch(stream, 1), optimizer_of(method), []
    method.old_net.register_forward_hook(lambda *args: asked.append("old"))
    assert count_passes(method, monkeypatch, lambda: method.observe(batch, optimizer)) == (1, 1)
    assert asked == ["old"]


def test_what_it_cannot_do_is_said(stream: Stream) -> None:
    problem = Problem(100, 10, lambda x: x, lambda x: x)
    message = "icarl needs one sample per class: memory_size must be >= 100, got 50"
    with pytest.raises(ConfigError, match=message):
        ICaRL(make_net(num_classes=100), problem, ICaRLConfig(memory_size=50))
    with pytest.raises(ConfigError, match="icarl needs the features of its net: no linear layer"):
        ICaRL(nn.Linear(3, 6), make_problem(stream))
    with pytest.raises(ConfigError, match="icarl needs disjoint classes per task; r-mnist is Domain-IL"):
        check_scenario("icarl", "domain-il", "r-mnist")
