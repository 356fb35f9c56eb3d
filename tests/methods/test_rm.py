"""Rainbow Memory: what is chosen and why, what a step is made of, and what each switch does."""

from typing import Any

import pytest
import torch
from support.steps import (
    EVERYTHING,
    batches_of,
    build,
    count_passes,
    first_batch,
    gradient,
    learn,
    optimizer_of,
    same_state,
    state_bytes,
    tasks,
)
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.augment.policy import auto_augment, cutmix, perturbations
from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods import check_scenario, rm
from strongreplay.methods.rm import RM, Passes, RMConfig, choose, disagreement, positions
from strongreplay.nets import build_net
from strongreplay.protocol import Batch, Problem, Split, Task, derive_generator
from strongreplay.training.engine import evaluate

PLAIN: dict[str, Any] = {"auto_augment": False, "cutmix": 0}


def make(stream: Stream, seed: int = 0, net: nn.Module | None = None, **settings: Any) -> RM:
    config = RMConfig(**({"memory_size": 24} | settings))
    return RM(net or make_net(seed), make_problem(stream, seed), config)


def after(stream: Stream, count: int, seed: int = 0, **settings: Any) -> RM:
    """With so many tasks learnt and the next one begun, 16 samples arriving and 16 replayed a step."""
    method = make(stream, seed, **settings)
    learn(method, tasks(stream, count), seed, epochs=1)
    method.begin_task(stream[count])
    assert method.stream_batch_size(32) == 16
    return method.train()


def counts(method: RM) -> list[int]:
    return torch.bincount(method.memory.rows.labels, minlength=NUM_CLASSES).tolist()


# Uncertainty and choice


def test_uncertainty_by_hand() -> None:
    votes = torch.tensor([[7] * 9 + [2] * 3, [4] * 12, list(range(12)), [1, 2] * 6]).t()
    assert disagreement(votes).tolist() == pytest.approx([0.25, 0, 11 / 12, 0.5], abs=1e-7)


@pytest.mark.parametrize(
    ("count", "quota", "step", "linspace"),
    [
        (10, 4, [0, 2, 4, 6], [0, 3, 6, 9]),
        (10, 3, [0, 3, 6], [0, 4, 9]),
        (9, 3, [0, 3, 6], [0, 4, 8]),
        (5, 5, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        (4, 5, [0, 1, 2, 3], [0, 1, 2, 3]),
        (7, 1, [0], [0]),
        (7, 0, [], []),
    ],
)
def test_positions_by_hand(count: int, quota: int, step: list[int], linspace: list[int]) -> None:
    assert positions(count, quota, "step").tolist() == step
    assert positions(count, quota, "linspace").tolist() == linspace


def test_each_class_spans_its_own_uncertainty() -> None:
    doubts = torch.cat([torch.arange(10.0), torch.arange(10.0).flip(0) / 100])
    labels = torch.arange(2).repeat_interleave(10)
    expected = {"step": ([0, 2, 4, 6], [13, 15, 17, 19]), "linspace": ([0, 3, 6, 9], [10, 13, 16, 19])}
    for spacing, (first, second) in expected.items():
        chosen = choose(labels, doubts, 4, 8, torch.Generator(), spacing)  # type: ignore[arg-type]
        assert chosen.tolist() == first + second


def test_the_remainder_is_filled_from_what_was_not_chosen() -> None:
    """Ten places for three classes: three each, and one by lot."""
    labels, doubts = torch.arange(3).repeat(9), torch.arange(27.0)
    spread = {label + 3 * place for label in range(3) for place in (0, 3, 6)}
    extras: list[int] = []
    for seed in range(400):
        chosen = choose(labels, doubts, 3, 10, torch.Generator().manual_seed(seed), "step").tolist()
        assert len(set(chosen)) == 10
        assert spread <= set(chosen)
        extras += set(chosen) - spread
    assert set(extras) == set(range(27)) - spread
    assert max(extras.count(row) for row in set(extras)) < 50  # 22 expected of each


def test_small_classes_give_their_places_away_and_few_samples_are_all_kept() -> None:
    labels = torch.tensor([0] * 2 + [1] * 20)
    chosen = choose(labels, torch.zeros(22), 5, 10, torch.Generator(), "step")
    assert torch.bincount(labels[chosen]).tolist() == [2, 8]
    assert choose(labels, torch.zeros(22), 5, 22, torch.Generator(), "step").tolist() == list(range(22))


def test_equal_uncertainty_is_decided_by_lot_and_not_by_the_order_of_the_data() -> None:
    labels, doubts = torch.zeros(30, dtype=torch.int64), torch.zeros(30)
    times = torch.zeros(30)
    for seed in range(600):
        times[choose(labels, doubts, 3, 3, torch.Generator().manual_seed(seed), "step")] += 1
    assert times.sum() == 1800
    assert times.min() > 30  # 60 expected; order of the data would give 600 to three rows
    assert times.max() < 95


def test_among_equals_of_two_levels_the_lower_come_first() -> None:
    doubts = torch.tensor([0.5, 0.0] * 10)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        chosen = choose(torch.zeros(20, dtype=torch.int64), doubts, 4, 4, generator, "step")
        assert sorted(doubts[chosen].tolist()) == [0, 0, 0.5, 0.5]  # places 0, 5, 10, 15 of the sorted


# The memory


def test_the_memory_is_balanced_full_raw_and_without_duplicates(stream: Stream) -> None:
    method = make(stream, memory_size=25)
    for number, quota in ((0, 12), (1, 6), (2, 4)):
        method.begin_task(stream[number])
        method.end_task(stream[number])
        images, labels = method.memory.rows
        found = counts(method)
        assert len(method.memory) == 25 == sum(found)
        assert min(found[: 2 * number + 2]) >= quota
        assert max(found) <= quota + 1
        given = torch.cat([stream[t].train.inputs for t in range(number + 1)]).flatten(1)
        answers = torch.cat([stream[t].train.labels for t in range(number + 1)])
        places = [torch.nonzero((row == given).all(1)).flatten().tolist() for row in images.flatten(1)]
        assert all(len(place) == 1 for place in places)  # bytes of the stream
        assert len({place[0] for place in places}) == 25
        assert torch.equal(answers[torch.tensor(places).flatten()], labels)


def test_fewer_samples_than_places_are_all_kept_unasked(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make(stream, memory_size=200)
    monkeypatch.setattr(method, "doubt", lambda images: pytest.fail("nothing to choose"))
    for number, size in ((0, 80), (1, 160)):
        method.end_task(stream[number])
        assert len(method.memory) == size
    monkeypatch.undo()
    method.end_task(stream[2])
    assert len(method.memory) == 200


def test_fewer_places_than_classes_are_filled_by_lot(stream: Stream) -> None:
    method = make(stream, memory_size=4)
    learn(method, stream, epochs=1)
    assert len(method.memory) == 4


def test_the_first_task_asks_the_net_nothing_and_later_ones_every_candidate_twelve_times(
    stream: Stream,
) -> None:
    method, asked = make(stream), [0]
    method.net.register_forward_hook(lambda module, inputs, _: asked.append(len(inputs[0])))
    method.end_task(stream[0])
    assert sum(asked) == 0
    method.end_task(stream[1])
    assert sum(asked) == 12 * (24 + 80)  # what is remembered is judged anew


class Constant(nn.Module):
    """A net that ignores what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.arange(float(NUM_CLASSES)))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits.expand(len(inputs), -1)


def test_a_net_that_ignores_its_input_gives_a_random_balanced_memory(stream: Stream) -> None:
    stored = []
    for seed in (0, 0, 1):
        method = make(stream, seed, net=Constant(), memory_size=12)
        method.end_task(stream[0])
        assert (method.doubt(stream[1].train.inputs) == 0).all()
        method.end_task(stream[1])
        assert counts(method) == [3, 3, 3, 3, 0, 0]
        stored.append(method.memory.rows.images)
    assert torch.equal(stored[0], stored[1])
    assert not torch.equal(stored[0], stored[2])


@pytest.mark.parametrize("kind", ["rand", "vr"])
def test_votes_are_those_of_perturbed_copies_in_the_plain_view(kind: Any, stream: Stream) -> None:
    method = after(stream, 1, perturbations=kind)
    images = stream[1].train.inputs
    generator = torch.Generator()
    generator.set_state(method.perturbing.generator.get_state())
    copies = [change(images, generator) for change in perturbations(kind, 1)]
    answers = [method.net(stream.test_view(copy))[:, :4].argmax(1) for copy in copies]
    ballots = [torch.bincount(votes, minlength=4).max().item() for votes in torch.stack(answers, 1)]
    expected = [1 - ballot / len(copies) for ballot in ballots]
    assert method.doubt(images).tolist() == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) > 2


def test_votes_go_to_classes_met_so_far_unless_all_compete(stream: Stream) -> None:
    inputs = stream.test_view(stream[1].train.inputs)
    for logits in ("seen", "all"):
        method = after(stream, 1, logits=logits)
        with torch.no_grad():
            head_of(method).bias[5] = 1e4
        assert (method.vote(inputs) == 5).all() == (logits == "all")
        assert (method.vote(inputs) < 4).all() == (logits == "seen")


def head_of(method: RM) -> nn.Linear:
    head = method.net.head
    assert isinstance(head, nn.Linear)
    return head


def test_the_memory_is_chosen_in_evaluation_mode_from_the_plain_view(stream: Stream) -> None:
    net = build_net("resnet18", (1, 6, 6), NUM_CLASSES, derive_generator(0, "net"), width=4)
    problem = Problem(NUM_CLASSES, 3, lambda images: pytest.fail("augmented"), stream.test_view)
    method = RM(net, problem, RMConfig(memory_size=10)).train()
    modes: list[bool] = []
    net.body.register_forward_hook(lambda module, *_: modes.append(module.training))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    method.end_task(stream[0])
    method.end_task(stream[1])
    assert modes
    assert not any(modes)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_the_most_disputed_are_met_by_linspace_and_left_out_by_the_step(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spacing in ("linspace", "step"):
        method = make(stream, memory_size=24, spacing=spacing)
        method.end_task(stream[0])
        doubts = {80: torch.arange(80.0), 24: torch.zeros(24)}
        monkeypatch.setattr(method, "doubt", lambda images, doubts=doubts: doubts[len(images)])
        method.end_task(stream[1])
        kept = method.memory.rows.images.flatten(1)
        given = stream[1].train.inputs.flatten(1)
        met = [number for number in range(80) if (kept == given[number]).all(1).any()]
        assert (79 in met) == (spacing == "linspace")


# A step


@pytest.mark.parametrize(("batch_size", "later", "replayed"), [(64, 32, 32), (17, 9, 8), (1, 1, 0)])
def test_half_of_a_step_is_replayed_once_there_is_a_memory(
    batch_size: int, later: int, replayed: int, stream: Stream
) -> None:
    method, shown = make(stream, **PLAIN), []
    assert method.stream_batch_size(batch_size) == batch_size
    method.net.register_forward_hook(lambda module, inputs, _: shown.append(len(inputs[0])))
    method.observe(first_batch(stream, 0, batch_size), optimizer_of(method))
    method.end_task(stream[0])
    assert method.stream_batch_size(batch_size) == later
    for _ in range(5):
        method.observe(first_batch(stream, 1, later), optimizer_of(method))
    assert shown == [batch_size] + [later + replayed] * 5
    method.observe(first_batch(stream, 1, 1), optimizer_of(method))  # a short last batch
    assert shown[-1] == 1 + replayed


def test_passes_go_through_all_places_before_any_comes_again() -> None:
    passes = Passes(torch.Generator().manual_seed(0))
    passes.count = 8
    drawn = torch.cat([passes.take(20, 99) for _ in range(15)])
    rounds = [part.tolist() for part in drawn.split(20)]
    assert all(sorted(part) == list(range(20)) for part in rounds)
    assert len({tuple(part) for part in rounds}) == 6


def test_a_small_memory_is_gone_through_more_than_once_a_step() -> None:
    passes = Passes(torch.Generator())
    passes.count = 7
    taken = passes.take(3, 99)
    assert sorted(taken[:3].tolist()) == sorted(taken[3:6].tolist()) == [0, 1, 2]
    assert len(passes.left) == 2


def test_a_new_memory_begins_a_new_pass(stream: Stream) -> None:
    method = after(stream, 1, **PLAIN)
    method.observe(first_batch(stream, 1), optimizer_of(method))
    assert len(method.passes.left) == 8
    method.end_task(stream[1])
    assert len(method.passes.left) == 0


def test_without_augmentation_a_step_is_one_mean_over_both_halves(stream: Stream) -> None:
    """Replay from a balanced memory: the gradient of the joined batch, to the bit."""
    method = after(stream, 1, **PLAIN, logits="all")
    generator = torch.Generator()
    generator.set_state(method.passes.generator.get_state())
    rows = torch.randperm(24, generator=generator)[:16]
    batch, (images, labels) = first_batch(stream, 1), method.memory.rows
    logits = method.net(torch.cat([batch.inputs, stream.test_view(images[rows])]))
    loss = cross_entropy(logits, torch.cat([batch.labels, labels[rows]]))
    expected = gradient(method.net, loss)
    terms = method.observe(batch, optimizer_of(method))
    assert terms == {"mixed": loss.detach()}
    assert torch.equal(torch.cat([value.grad.flatten() for value in method.net.parameters()]), expected)  # type: ignore[union-attr]


def test_a_first_task_without_augmentation_is_sgd(stream: Stream) -> None:
    first = tasks(stream, 1)
    plain = make(stream, **PLAIN, logits="all")
    sgd = build("sgd", make_problem(stream))
    learn(plain, first), learn(sgd, first)
    assert torch.equal(weights(plain.net), weights(sgd.net))


def test_duplicating_every_sample_leaves_the_loss_as_it_is(stream: Stream) -> None:
    method = after(stream, 1, **PLAIN)
    inputs, labels = stream.test_view(stream[1].train.inputs[:9]), stream[1].train.labels[:9]
    once = method.loss(inputs, labels)
    twice = method.loss(torch.cat([inputs, inputs]), torch.cat([labels, labels]))
    assert twice.item() == pytest.approx(once.item(), rel=1e-6)


def test_classes_not_met_get_no_gradient_unless_all_compete(stream: Stream) -> None:
    for logits, silent in (("seen", True), ("all", False)):
        method = after(stream, 1, logits=logits)
        method.observe(first_batch(stream, 1), optimizer_of(method))
        slope = head_of(method).weight.grad
        assert slope is not None
        assert (slope[:4] != 0).any(1).all()
        assert (slope[4:] == 0).all() == silent


def test_the_loss_over_met_classes_is_that_of_a_smaller_head(stream: Stream) -> None:
    method = after(stream, 1, **PLAIN)
    inputs, labels = stream.test_view(stream[1].train.inputs[:9]), stream[1].train.labels[:9]
    expected = cross_entropy(method.net(inputs)[:, :4], labels)
    assert method.loss(inputs, labels).item() == pytest.approx(expected.item(), rel=1e-6)


def test_before_any_task_has_begun_all_classes_compete(stream: Stream) -> None:
    method = make(stream, **PLAIN)
    logits = torch.randn(3, NUM_CLASSES)
    assert torch.equal(method.compete(logits), logits)


def test_one_forward_and_one_backward_a_step(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = after(stream, 1)
    batch, optimizer = first_batch(stream, 1), optimizer_of(method)
    assert count_passes(method, monkeypatch, lambda: method.observe(batch, optimizer)) == (1, 1)


# Augmentation


def shown_by(method: RM, batch: Batch) -> Tensor:
    shown: list[Tensor] = []
    hook = method.net.register_forward_hook(lambda module, inputs, _: shown.append(inputs[0].clone()))
    method.observe(batch, optimizer_of(method, 1e-9))
    hook.remove()
    return shown[0]


def test_raw_images_of_both_halves_are_changed_by_the_policy_and_then_viewed(stream: Stream) -> None:
    method = after(stream, 1, cutmix=0)
    method.view = lambda images: images.float().div(255).flip(-1)  # in place of crop and flip
    policy_state, pass_state = torch.Generator(), torch.Generator()
    policy_state.set_state(method.augmenting.generator.get_state())
    pass_state.set_state(method.passes.generator.get_state())
    rows = torch.randperm(24, generator=pass_state)[:16]
    batch = first_batch(stream, 1)
    images = torch.cat([batch.images, method.memory.rows.images[rows]])
    expected = auto_augment(images, policy_state).float().div(255).flip(-1)
    before = method.memory.rows.images.clone(), batch.images.clone()
    assert torch.equal(shown_by(method, batch), expected)
    assert torch.equal(method.memory.rows.images, before[0])
    assert torch.equal(batch.images, before[1])


def test_cutmix_weighs_both_labels_by_their_share(stream: Stream) -> None:
    method = after(stream, 1, auto_augment=False, cutmix=1)
    generator = torch.Generator()
    generator.set_state(method.mixing.generator.get_state())
    inputs, labels = stream.test_view(stream[1].train.inputs[:12]), stream[1].train.labels[:12]
    before = inputs.clone()
    torch.rand((), generator=generator)
    mixed, partners, share = cutmix(inputs, generator)
    targets = share * torch.eye(4)[labels] + (1 - share) * torch.eye(4)[labels[partners]]
    assert torch.allclose(targets.sum(1), torch.ones(12))
    assert 0 < share < 1
    expected = cross_entropy(method.net(mixed)[:, :4], targets)
    assert method.loss(inputs, labels).item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.equal(inputs, before)


def test_every_other_step_mixes_and_nothing_stored_is_touched(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, mixed = after(stream, 1, auto_augment=False), []

    def spy(inputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
        mixed.append(len(inputs))
        return cutmix(inputs, generator)

    monkeypatch.setattr(rm, "cutmix", spy)
    batch, stored = first_batch(stream, 1), method.memory.rows.images.clone()
    images, inputs = batch.images.clone(), batch.inputs.clone()
    for _ in range(100):
        method.observe(batch, optimizer_of(method, 1e-6))
    assert 35 < len(mixed) < 65
    assert set(mixed) == {32}  # both halves together
    assert torch.equal(method.memory.rows.images, stored)
    assert torch.equal(batch.images, images)
    assert torch.equal(batch.inputs, inputs)


def test_a_switch_moves_no_draw_of_the_others(stream: Stream) -> None:
    plain, strong = after(stream, 1, **PLAIN), after(stream, 1)
    plain.observe(first_batch(stream, 1), optimizer_of(plain))
    strong.observe(first_batch(stream, 1), optimizer_of(strong))
    assert torch.equal(plain.passes.left, strong.passes.left)
    assert torch.equal(plain.memory.rows.labels, strong.memory.rows.labels)


# The head


def test_a_new_head_at_every_task_but_the_first_by_a_switch(stream: Stream) -> None:
    method = make(stream, reset_head=True)
    head, parameters = head_of(method), list(method.net.parameters())
    before = head.weight.clone()
    method.begin_task(stream[0])
    assert torch.equal(head.weight, before)
    body = [value.clone() for name, value in method.net.named_parameters() if "head" not in name]
    method.begin_task(stream[1])
    assert not torch.isclose(head.weight, before).any()
    assert head.weight.abs().max() <= 32**-0.5  # PyTorch's own start for 32 features
    assert all(first is second for first, second in zip(parameters, method.net.parameters(), strict=True))
    now = [value for name, value in method.net.named_parameters() if "head" not in name]
    assert all(torch.equal(first, second) for first, second in zip(body, now, strict=True))
    kept = make(stream)
    kept.begin_task(stream[0]), kept.begin_task(stream[1])
    assert torch.equal(head_of(kept).weight, before)


# Saving, learning, refusing

STRONG: dict[str, Any] = {"reset_head": True, "perturbations": "vr", "spacing": "linspace"}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, STRONG])
@pytest.mark.parametrize("stop", [3, 7, 10, 13])
def test_saved_anywhere_it_continues_to_the_bit(settings: dict[str, Any], stop: int, stream: Stream) -> None:
    def steps(method: RM, start: int, end: int) -> None:
        batches = [b for t in (0, 1, 2) for b in batches_of(stream[t].train, stream)]
        for number in range(start, end):
            if number % 5 == 0:
                method.begin_task(stream[number // 5])
                method.stream_batch_size(11)
            method.observe(batches[number], optimizer_of(method))
            if number % 5 == 4:
                method.end_task(stream[number // 5])

    straight, early = make(stream, **settings), make(stream, **settings)
    steps(straight, 0, 15)
    steps(early, 0, stop)
    resumed = make(stream, seed=9, **settings)
    resumed.load_state_dict(early.state_dict())
    steps(resumed, stop, 15)
    assert same_state(state_bytes(straight), state_bytes(resumed))
    assert torch.equal(straight.passes.left, resumed.passes.left)


@pytest.mark.slow
def test_it_remembers_where_sgd_forgets(stream: Stream) -> None:
    def class_il(method: Any) -> float:
        learn(method, stream, epochs=6)
        return sum(evaluate(method, stream.test(t), stream.test_view, EVERYTHING)[0] for t in range(3)) / 3

    forgetful = class_il(build("sgd", make_problem(stream)))
    assert class_il(make(stream, memory_size=30, **PLAIN)) > forgetful + 20
    assert class_il(make(stream, memory_size=30, auto_augment=False)) > forgetful + 20


def test_images_of_three_channels_and_a_net_with_batch_norm(stream: Stream) -> None:
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator())
    split = Split(images, torch.arange(40) % 2)
    problem = Problem(4, 2, stream.test_view, stream.test_view)
    net = build_net("resnet18", (3, 8, 8), 4, derive_generator(0, "net"), width=4)
    method = RM(net, problem, RMConfig(memory_size=10)).train()
    for number in range(2):
        task = Task(number, (2 * number, 2 * number + 1), Split(images, split.labels + 2 * number), split)
        method.begin_task(task)
        batch = Batch(torch.arange(8), images[:8], stream.test_view(images[:8]), task.train.labels[:8])
        assert all(term.isfinite() for term in method.observe(batch, optimizer_of(method)).values())
        method.end_task(task)
    assert len(method.memory) == 10


def test_what_it_cannot_do_is_said(stream: Stream) -> None:
    with pytest.raises(
        ConfigError, match="rm with reset_head needs the features of its net: no linear layer"
    ):
        make(stream, net=nn.Linear(3, 6), reset_head=True)
    make(stream, net=nn.Linear(3, 6))
    with pytest.raises(ConfigError, match="rm is published for disjoint classes per task only; r-mnist"):
        check_scenario("rm", "domain-il", "r-mnist")
