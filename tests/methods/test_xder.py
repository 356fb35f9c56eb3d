"""X-DER: corrected logits, contrast and constraints by hand, its memory, and when it is DER or SGD."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from support.steps import (
    batches_of,
    build,
    first_batch,
    first_norm,
    first_task,
    learn,
    make_cnn,
    optimizer_of,
    tasks,
)
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor

from strongreplay.data.streams import Stream, accumulate
from strongreplay.errors import ConfigError
from strongreplay.methods.der import DER, DERConfig
from strongreplay.methods.xder import XDER
from strongreplay.methods.xder_parts import (
    Replayed,
    XDERConfig,
    contrast,
    correct_logits,
    excess,
    similarity_distance,
)
from strongreplay.protocol import Split

OFF: dict[str, Any] = {
    "contrast": 0,
    "eta": 0,
    "beta": 0,
    "update": False,
    "align_bn": False,
    "compete": "all",
}


def make(stream: Stream, net: Any = None, **settings: Any) -> XDER:
    return XDER(net or make_net(), make_problem(stream), XDERConfig(**{"memory_size": 24} | settings))


@pytest.mark.parametrize(
    ("right", "block", "wanted"),
    [(2.0, (4.0, 1.0), (1.7, 0.425)), (2.0, (1.0, 0.5), (1.0, 0.5)), (-1.0, (1.0, 0.0), (0.0, 0.0))],
)
def test_fresh_logits_above_that_of_the_label_are_scaled_down(
    right: float, block: tuple[float, float], wanted: tuple[float, float]
) -> None:
    stored, fresh = torch.tensor([[right, 9.0, 9.0]]), torch.tensor([[5.0, *block]])
    kept = fresh.clone()
    found = correct_logits(stored, fresh, torch.tensor([0]), torch.tensor([False, True, True]), 0.85)
    assert torch.allclose(found, torch.tensor([[right, *wanted]]))
    assert torch.equal(fresh, kept)  # a copy is returned


def test_the_reference_turns_signs_where_the_right_logit_is_negative() -> None:
    stored, fresh = torch.tensor([[-1.0, 9.0, 9.0]]), torch.tensor([[5.0, 1.0, 0.5]])
    columns = torch.tensor([False, True, True])
    found = correct_logits(stored, fresh, torch.tensor([0]), columns, 0.85, legacy=True)
    assert torch.allclose(found, torch.tensor([[-1.0, -0.85, -0.425]]))


def test_contrast_of_two_items_with_two_equal_views_and_orthogonal_heads() -> None:
    vectors = torch.tensor([[[3.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 2.0]]])  # one head; views, then items
    loss = contrast(vectors, torch.tensor([0, 1, 0, 1]), 5.0)
    assert loss.item() == pytest.approx(0.969817, abs=1e-6)
    assert 2 * loss.item() == pytest.approx(1.939634, abs=2e-6)  # summed over items


def test_constraint_is_the_mean_of_what_is_positive() -> None:
    future, own = torch.tensor([1.0, 1.0]), torch.tensor([0.8, 1.5], requires_grad=True)
    over = excess(future, own, 0.3)
    assert over.item() == pytest.approx(0.5)
    over.backward()
    assert own.grad is not None
    assert own.grad.tolist() == [-1.0, 0.0]
    assert excess(future[1:], own[1:], 0.3) == 0


def test_distance_of_similarities_ignores_the_scale_of_a_head() -> None:
    heads = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    assert similarity_distance(heads, 3 * heads).item() == pytest.approx(0, abs=1e-10)
    assert similarity_distance(heads, heads.flip(2)) > 0


def test_a_slots_logits_are_replaced_at_its_nth_visit_with_probability_one_in_n(stream: Stream) -> None:
    method = make(stream, memory_size=20)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    slots, rows, updates, rounds = torch.arange(20), method.memory.rows, torch.zeros(20), 100
    rows.logits[:] = 100.0  # fresh logits are below, so they are stored as they are
    for number in range(rounds):
        method.visits.zero_()
        for visit in range(1, 6):
            before = rows.logits.clone()
            fresh = torch.full((20, 6), visit + number / rounds)
            method.refresh(Replayed(slots, rows.labels, before, fresh))
            changed = (rows.logits[:, 2:] != before[:, 2:]).all(1)
            assert changed.all() or visit > 1
            updates += changed
    assert method.visits.tolist() == [5] * 20
    assert updates.mean().item() / rounds == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5, abs=0.06)


def test_past_columns_of_stored_logits_stay(stream: Stream) -> None:
    method = make(stream, contrast=0)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    before = method.memory.rows.logits.clone()
    method.observe(first_batch(stream, 1), optimizer_of(method))
    after = method.memory.rows.logits
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.equal(before[:, 2:], after[:, 2:])


def test_the_memory_is_balanced_full_and_keeps_a_prefix_of_old_classes(stream: Stream) -> None:
    method, before = make(stream, memory_size=23), dict[int, Tensor]()
    for index in range(3):
        learn(method, Stream("class-il", stream.task_classes[index : index + 1], stream.input_shape,
                             lambda _, part, index=index: stream.make(index, part)), epochs=1)  # type: ignore[misc]  # fmt: skip
        rows = method.memory.rows
        assert len(method.memory) == 23
        own = [int((rows.labels == label).sum()) for label in stream.task_classes[index]]
        assert max(own) - min(own) <= 1
        for label, images in before.items():
            kept = rows.images[rows.labels == label]
            assert len(kept) == 23 // (2 * index + 2)
            assert torch.equal(kept, images[: len(kept)])
        before = {label: rows.images[rows.labels == label] for label in rows.labels.unique().tolist()}
        past = list(range(2 * index))
        if past:  # "update past": no past logit above that of the label
            new = rows.labels >= 2 * index
            right = rows.logits[new].gather(1, rows.labels[new][:, None])
            assert (rows.logits[new][:, past] <= right.clamp(min=0) + 1e-6).all()
    assert method.visits.sum() == 0


def test_with_everything_off_the_steps_are_those_of_der_to_the_bit(stream: Stream) -> None:
    method = make(stream, alpha=0.4, **OFF)
    learn(method, first_task(stream), epochs=1)
    der = DER(deepcopy(method.net), make_problem(stream), DERConfig(memory_size=24, alpha=0.4))
    rows = method.memory.rows
    der.memory.append(type(der.memory.row_type(0, 0))(rows.images, rows.logits))
    der.memory.add = lambda *unused: None  # type: ignore[method-assign]
    der.memory.generator.set_state(method.memory.generator.get_state())
    method.begin_task(stream[1])
    for batch in batches_of(stream[1].train, stream):
        method.observe(batch, optimizer_of(method))
        der.observe(batch, optimizer_of(der))
    assert torch.equal(weights(method.net), weights(der.net))


def test_a_single_task_is_plain_training_to_the_bit(stream: Stream) -> None:
    union = accumulate(stream)
    method, sgd = make(union), build("sgd", make_problem(union))
    learn(method, union, epochs=2), learn(sgd, union, epochs=2)
    assert torch.equal(weights(method.net), weights(sgd.net))


def test_running_statistics_change_in_one_forward_pass_of_a_step(stream: Stream) -> None:
    method = make(stream, net=make_cnn())
    norm = first_norm(method.net)
    method.train()
    method.begin_task(stream[0])
    method.observe(first_batch(stream), optimizer_of(method))
    assert norm.num_batches_tracked == 1
    method.end_task(stream[0])
    assert norm.num_batches_tracked == 1
    method.begin_task(stream[1])
    terms = method.observe(first_batch(stream, 1), optimizer_of(method))
    assert set(terms) == {"current", "backward", "replay", "contrast", "future"}
    assert norm.num_batches_tracked == 2
    free = make(stream, net=make_cnn(), align_bn=False)
    learn(free, first_task(stream), epochs=1)
    count = int(first_norm(free.net).num_batches_tracked)
    free.begin_task(stream[1])
    free.observe(first_batch(stream, 1), optimizer_of(free))
    assert first_norm(free.net).num_batches_tracked == count + 4


def test_every_term_can_be_on_and_the_last_task_has_no_future(stream: Stream) -> None:
    method = make(stream, distance=3000, past_eta=0.1)
    learn(method, tasks(stream, 2), epochs=1)
    method.begin_task(stream[2])
    terms = method.observe(first_batch(stream, 2), optimizer_of(method))
    assert set(terms) == {"current", "backward", "replay", "past"}
    method = make(stream, distance=3000)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    assert "similarity" in method.observe(first_batch(stream, 1), optimizer_of(method))


def test_contrast_needs_images(stream: Stream) -> None:
    split = Split(torch.rand(4, 36), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ConfigError, match=r"xder contrasts images .* set method\.contrast=0"):
        make(stream).begin_task(stream[0].with_train(split))


def test_stored_logits_are_those_of_a_pinned_toy_run(stream: Stream) -> None:
    """A regression: a rewrite of the reference once lost accuracy unnoticed."""
    method = make(stream)
    learn(method, stream, epochs=2)
    logits = method.memory.rows.logits
    found = [logits.mean().item(), logits.std().item(), weights(method.net).norm().item()]
    assert found == pytest.approx([-0.17240, 0.52741, 8.98014], rel=2e-3)
