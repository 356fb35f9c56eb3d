"""L2P and DualPrompt: choice of prompts by hand, which weights move, single images, and degenerate cases."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compare import assert_same
from support.ranks import distance, in_ranks, load, save
from support.steps import first_batch, learn, net_for, optimizer_of, state_bytes
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods import METHODS
from strongreplay.methods.dualprompt import DualPrompt, DualPromptConfig
from strongreplay.methods.l2p import L2P, L2PConfig
from strongreplay.methods.prompts import cosines, nearest, vote
from strongreplay.protocol import Batch, Split, Task
from strongreplay.runs.config import resolve
from strongreplay.testing import MethodCase, small_stream
from strongreplay.training.engine import train_task
from strongreplay.training.parallel import Ranks
from strongreplay.training.shared_rows import share_rows

ORDER = torch.tensor([3, 0, 5, 1, 7, 2, 6, 4])
NUM_PATCHES = 4  # of the 6 x 6 images


def l2p(stream: Stream, **settings: Any) -> L2P:
    return L2P(net_for("l2p"), make_problem(stream), L2PConfig(**{"length": 3} | settings))


def dual(stream: Stream, **settings: Any) -> DualPrompt:
    return DualPrompt(net_for("dualprompt"), make_problem(stream), DualPromptConfig(**settings))


def inputs_of(stream: Stream, count: int = 8) -> Tensor:
    return stream.test_view(stream[0].train.inputs[:count])


def spread_keys(net: Any, inputs: Tensor) -> None:
    """Keys that different images choose: the queries of the first ones."""
    with torch.no_grad():
        for key, query in zip(net.keys, net.body(inputs), strict=False):
            key.copy_(query)


def gradients(method: Any, batch: Batch) -> dict[str, Tensor | None]:
    method.observe(batch, optimizer_of(method, lr=0.1))
    return {name: p.grad for name, p in method.net.named_parameters()}


# Choosing


def test_cosines_and_the_pull_term_by_hand() -> None:
    similarities = cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    assert similarities.tolist() == [pytest.approx([0.6, 0.8])]
    assert nearest(similarities, 2).tolist() == [[1, 0]]
    assert similarities.sum().item() == pytest.approx(1.4)
    assert cosines(torch.zeros(1, 2), torch.zeros(1, 2)).item() == 0  # the norm has a floor


def test_the_vote_by_hand_and_equal_counts_go_to_the_first() -> None:
    assert vote(torch.tensor([[0, 1], [0, 2], [1, 0]]), 4).tolist() == [[0, 1]] * 3
    assert vote(torch.tensor([[3, 2], [1, 0]]), 4).tolist() == [[0, 1]] * 2
    assert nearest(torch.zeros(1, 4), 2).tolist() == [[0, 1]]


# L2P


def test_prompts_that_are_not_chosen_have_no_gradient_and_the_body_none_at_all(stream: Stream) -> None:
    method = l2p(stream, vote="training")
    method.begin_task(stream[0])
    batch = first_batch(stream)
    picks = method.net.choose(batch.inputs, True)[0]
    found = gradients(method, batch)
    chosen = set(picks.flatten().tolist())
    assert len(chosen) == 4
    for name in ("prompts", "keys"):
        gradient = found[name]
        assert gradient is not None
        moved = {n for n in range(10) if gradient[n].abs().sum() > 0}
        assert moved == chosen
        assert all(torch.count_nonzero(gradient[n]) == 0 for n in range(10) if n not in chosen)
    assert all(found[name] is None for name in found if name.startswith("body."))
    head = found["head.weight"]
    assert head is not None
    assert head[:2].abs().sum() > 0
    assert torch.count_nonzero(head[2:]) == 0  # columns of other tasks are masked


def test_the_sequence_is_prompts_then_class_token_then_patches(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, inputs = l2p(stream), inputs_of(stream)
    body, seen = method.net.body, list[Tensor]()
    run = body.run

    def spy(tokens: Tensor, prefixes: tuple[Tensor, ...] = ()) -> Tensor:
        seen.extend((tokens, run(tokens, prefixes)))
        return seen[-1]

    monkeypatch.setattr(body, "run", spy)
    picks = method.net.choose(inputs, False)[0]
    seen.clear()
    features = method.net.prompted(inputs, picks)
    tokens, outputs = seen
    assert tokens.shape[1] == NUM_PATCHES + 1 + 4 * 3
    assert torch.equal(tokens[:, :12], method.net.prompts[picks].flatten(1, 2))
    assert torch.equal(tokens[:, 12:], body.tokens(inputs))
    assert torch.equal(features, outputs[:, :12].mean(1))


def test_the_order_of_tokens_is_of_no_matter_so_the_port_only_adds_a_position(stream: Stream) -> None:
    method, inputs = l2p(stream, place="port"), inputs_of(stream)
    body, picks = method.net.body, method.net.choose(inputs, False)[0]
    prompts = method.net.prompts[picks].flatten(1, 2) + body.pos_embed[0, 0]
    tokens = body.tokens(inputs)
    outputs = body.run(torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], 1))
    assert torch.allclose(method.net.prompted(inputs, picks), outputs[:, 1:13].mean(1), atol=1e-6)
    assert not torch.allclose(l2p(stream).net.prompted(inputs, picks), outputs[:, 1:13].mean(1), atol=1e-6)


@pytest.mark.parametrize("when", ["never", "training"])
def test_without_a_vote_each_image_is_answered_by_itself(when: str, stream: Stream) -> None:
    method, inputs = l2p(stream, vote=when), inputs_of(stream)
    spread_keys(method.net, inputs)
    picks = method.net.choose(inputs, False)[0]
    assert len(picks.unique(dim=0)) > 1  # they choose different ones
    assert torch.equal(method.predict(inputs[ORDER]), method.predict(inputs)[ORDER])


def test_with_a_vote_all_images_have_the_same_prompts(stream: Stream) -> None:
    method, inputs = l2p(stream, vote="always"), inputs_of(stream)
    spread_keys(method.net, inputs)
    picks, similarities = method.net.choose(inputs, True)
    assert len(picks.unique(dim=0)) == 1
    assert similarities.shape == (8, 4)
    assert torch.equal(method.net.features(inputs), method.net.prompted(inputs, picks))


def test_the_loss_of_a_step_by_hand(stream: Stream) -> None:
    method, batch = l2p(stream, pull=0.5, vote="never"), first_batch(stream)
    method.begin_task(stream[0])
    net = method.net
    with torch.no_grad():
        query = net.body(batch.inputs)
        cosine = torch.nn.functional.cosine_similarity(query[:, None], net.keys[None], dim=2)
        picks = cosine.topk(4).indices
        logits = net.head(net.prompted(batch.inputs, picks))
    terms = method.observe(batch, optimizer_of(method))
    assert terms["current"].item() == pytest.approx(
        cross_entropy(logits[:, :2], batch.labels).item(), abs=1e-5
    )
    assert terms["pull"].item() == pytest.approx(-0.5 * cosine.topk(4).values.sum(1).mean().item(), abs=1e-5)


def test_without_pull_and_with_fixed_prompts_it_is_a_linear_probe_of_their_mean(stream: Stream) -> None:
    method, batch = l2p(stream, pull=0.0, vote="never"), first_batch(stream)
    method.begin_task(stream[0])
    for each in (method.net.prompts, method.net.keys):
        each.requires_grad_(False)
    with torch.no_grad():
        features = method.net.features(batch.inputs)
    probe = torch.nn.Linear(features.shape[1], NUM_CLASSES)
    probe.load_state_dict(method.net.head.state_dict())
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    cross_entropy(probe(features)[:, :2], batch.labels).backward()
    optimizer.step()
    method.observe(batch, optimizer_of(method))
    assert torch.allclose(method.net.head.weight, probe.weight, atol=1e-7)


# DualPrompt


def test_prefixes_leave_the_length_of_the_sequence(stream: Stream) -> None:
    method, inputs, lengths = dual(stream), inputs_of(stream), list[int]()
    for block in method.net.body.blocks:
        block.register_forward_hook(lambda module, args, out: lengths.append(out.shape[1]))
    method.predict(inputs)
    assert set(lengths) == {NUM_PATCHES + 1}


def test_each_image_gets_the_prompt_it_chose_and_keys_stay_apart_from_values(stream: Stream) -> None:
    method = dual(stream)
    for task in stream:
        method.begin_task(task)
    for number, expert in enumerate(method.net.experts):
        with torch.no_grad():
            expert[:, 0], expert[:, 1] = number, number + 0.5
    picks, given = torch.tensor([2, 0, 1, 1]), dict[int, Tensor]()
    for number, block in enumerate(method.net.body.blocks):
        block.register_forward_hook(lambda module, args, out, n=number: given.update({n: args[1]}))
    method.net.prompted(inputs_of(stream, 4), method.net.chosen(picks))
    assert set(given) == {0, 1, 2, 3, 4}
    for place in (2, 3, 4):
        for row, pick in enumerate(picks.tolist()):
            assert set(given[place][row, 0].flatten().tolist()) == {pick}
            assert set(given[place][row, 1].flatten().tolist()) == {pick + 0.5}
    for place in (0, 1):
        assert torch.equal(given[place], method.net.general[place].expand(4, -1, -1, -1, -1))
        assert not torch.equal(given[place][:, 0], given[place][:, 1])


def test_only_the_task_s_own_prompt_the_general_one_and_the_head_are_learnt(stream: Stream) -> None:
    method = dual(stream)
    learn(method, stream, epochs=1)
    before = state_bytes(method)
    found = gradients(method, first_batch(stream, 2))
    learnt = {name for name, gradient in found.items() if gradient is not None and gradient.abs().sum() > 0}
    assert learnt == {"experts.2", "keys.2", "general", "head.weight", "head.bias"}
    assert all(found[name] is None for name in found if name not in learnt)
    after = state_bytes(method)
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert moved == {f"net.{name}" for name in learnt}


def test_a_task_starts_with_a_copy_of_the_last_expert_and_with_a_key_of_its_own(stream: Stream) -> None:
    method = dual(stream)
    learn(method, Stream(stream.scenario, stream.task_classes[:1], stream.input_shape, stream.make), epochs=1)
    method.begin_task(stream[1])
    first, second = method.net.experts
    assert torch.equal(first, second)
    assert not torch.equal(method.net.keys[0], method.net.keys[1])
    before = first.detach().clone()
    method.observe(first_batch(stream, 1), optimizer_of(method))
    assert torch.equal(first, before)
    assert not torch.equal(second, before)


def test_permuting_a_batch_permutes_the_answers_in_training_too(stream: Stream) -> None:
    method, inputs = dual(stream), inputs_of(stream)
    for task in stream:
        method.begin_task(task)
    spread_keys(method.net, inputs)
    assert len(method.net.choose(inputs).unique()) > 1
    assert torch.equal(method.predict(inputs[ORDER]), method.predict(inputs)[ORDER])
    expert = method.net.experts[-1].expand(8, *method.net.experts[-1].shape)
    method.train()
    assert torch.equal(method.net.prompted(inputs[ORDER], expert), method.net.prompted(inputs, expert)[ORDER])


def test_a_query_that_equals_the_key_has_pull_one(stream: Stream) -> None:
    method = dual(stream, pull=1.0)
    batch = first_batch(stream, size=1)
    method.begin_task(stream[0])
    with torch.no_grad():
        method.net.keys[0].copy_(method.net.body(batch.inputs)[0])
    assert method.observe(batch, optimizer_of(method))["pull"].item() == pytest.approx(-1.0, abs=1e-6)


def test_a_vote_gives_all_images_the_most_frequent_expert(stream: Stream) -> None:
    method, inputs = dual(stream, vote=True), inputs_of(stream)
    for task in stream:
        method.begin_task(task)
    spread_keys(method.net, inputs)
    alone = dual(stream)
    alone.net.load_state_dict(method.net.state_dict())
    own = alone.net.choose(inputs)
    assert len(own.unique()) > 1
    assert method.net.choose(inputs).tolist() == [own.bincount().argmax().item()] * 8


def test_without_general_prompts_the_first_blocks_have_none(stream: Stream) -> None:
    method, inputs = dual(stream, general_length=0, general_blocks=()), inputs_of(stream)
    with torch.no_grad():
        plain = method.net.body(inputs, torch.empty(8, 0, 8), *[torch.empty(8, 2, 4, 0, 2)] * 5)
        assert torch.equal(plain, method.net.body(inputs))
        assert not torch.equal(method.net.features(inputs), plain)  # experts have some


# Both


def train_in_double(name: str, ranks: Ranks) -> dict[str, Any]:
    """Two tasks in batches of 27, 27 and 26 rows."""

    def view(images: Tensor) -> Tensor:
        return images.double() / 255

    def net() -> nn.Module:
        return share_rows(net_for(name).double(), NUM_CLASSES, ranks)

    stream = replace(small_stream(), train_view=lambda generator: view, test_view=view)
    method, order = MethodCase(METHODS[name], net=net, stream=stream).make().double(), torch.Generator()
    for task in (stream[0], stream[1]):
        optimizer = torch.optim.SGD(method.net.parameters(), lr=0.01)
        train_task(method, task, view, optimizer, epochs=1, batch_size=27, generator=order)
    return dict(method.state_dict())


def train_both(ranks: Ranks, folder: Path) -> None:
    for name in ("l2p", "dualprompt"):
        save(folder, name, ranks, train_in_double(name, ranks))


@pytest.mark.slow
def test_two_ranks_divide_images_and_prompts_and_mean_the_same_as_one(tmp_path: Path) -> None:
    assert in_ranks(2, tmp_path, train_both) == [0, 0]
    for name in ("l2p", "dualprompt"):
        first, second = (load(tmp_path, name, rank) for rank in range(2))
        assert_same(first, second)
        assert distance(train_in_double(name, Ranks()), first) < 1e-12


@pytest.mark.parametrize("make", [l2p, dual])
def test_the_body_does_not_move_in_training(make: Any, stream: Stream) -> None:
    method = make(stream)
    before, prompts = weights(method.net.body), state_bytes(method)
    learn(method, stream, epochs=1)
    assert torch.equal(weights(method.net.body), before)
    assert not torch.equal(state_bytes(method)["net.keys" if make is l2p else "net.keys.0"], prompts[
        "net.keys" if make is l2p else "net.keys.0"
    ])  # fmt: skip


@pytest.mark.parametrize("make", [l2p, dual])
def test_a_label_outside_of_the_task_is_refused_before_the_loss_is_infinite(
    make: Any, stream: Stream
) -> None:
    split = stream[0].train
    strange = Task(0, (0, 1), Split(split.inputs, split.labels + 1), split)
    with pytest.raises(ConfigError, match=r"learns the classes of a task \(0, 1\), got labels \{2\} too"):
        make(stream).begin_task(strange)


@pytest.mark.parametrize(("method", "name"), [(L2P, "l2p"), (DualPrompt, "dualprompt")])
def test_a_net_without_tokens_is_refused(method: Any, name: str, stream: Stream) -> None:
    with pytest.raises(
        ConfigError, match=f"{name} needs a net with tokens, got Sequential; use net.name=vit"
    ):
        method(make_net(), make_problem(stream))


def test_settings_that_make_no_sense_are_refused(stream: Stream) -> None:
    with pytest.raises(ConfigError, match=r"chooses method\.top of method\.pool_size prompts, got 11 of 10"):
        l2p(stream, top=11)
    with pytest.raises(ConfigError, match="a block has one prompt"):
        dual(stream, general_blocks=(2,))
    with pytest.raises(
        ConfigError, match=r"blocks \(0, 1, 9\), and the net has blocks 0 to 4; set net\.depth"
    ):
        dual(stream, expert_blocks=(9,))


def test_published_values_and_their_rates() -> None:
    first, second = (resolve("seq-cifar100-10", name) for name in ("l2p", "dualprompt"))
    assert first.method.model_dump() == {
        "pool_size": 10, "length": 10, "top": 4, "pull": 1.0, "vote": "training", "place": "official"
    }  # fmt: skip
    for config, size in ((first, 16), (second, 24)):
        train = config.train
        assert (train.batch_size, train.lr, train.epochs) == (size, 0.03 * size / 256, 5)
        assert (train.optimizer, train.clip_norm, train.milestones) == ("adam", 1.0, ())
        assert config.net.options == {"side": 224, "patch": 16}


def test_settings_of_a_recipe_s_net_do_not_hinder_another_net() -> None:
    config = resolve("seq-cifar100-10", "l2p", settings={"net.name": "cnn"})  # refused when it is built
    assert config.net.options == {}
