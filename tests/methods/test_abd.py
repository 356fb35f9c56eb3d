"""ABD: its losses by hand, which parts each of them reaches, and what is frozen when."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from support.steps import (
    final_weights,
    first_batch,
    first_task,
    learn,
    make_cnn,
    optimizer_of,
    state_bytes,
    tasks,
)
from support.tiny_stream import make_net, make_problem, train_phase, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods.abd import ABD, ABDConfig, head_distance, weigh
from strongreplay.methods.abd_parts import (
    ImageGenerator,
    balance,
    recorded_statistics,
    roughness,
    statistics_distance,
)
from strongreplay.methods.base import MAIN
from strongreplay.nets import Classifier
from strongreplay.protocol import Split


def make(stream: Stream, net: Classifier | None = None, **settings: Any) -> ABD:
    small = {"generator_steps": 3, "generator_batch_size": 8, "generator_width": 8, "code_size": 10}
    return ABD(net or make_net(), make_problem(stream), ABDConfig(**small | settings))


def second_task(stream: Stream) -> ABD:
    method = make(stream, make_cnn())
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    method.train()
    return method


def test_the_distance_to_statistics_by_hand() -> None:
    maps = torch.tensor([3.0, -1.0]).view(2, 1, 1, 1)  # mean 1, variance 4
    assert statistics_distance(maps, torch.zeros(1), torch.ones(1)).item() == pytest.approx(
        0.443147, abs=1e-6
    )
    assert statistics_distance(maps, torch.ones(1), 4 * torch.ones(1)).item() == pytest.approx(0, abs=1e-6)


def test_statistics_are_those_of_the_inputs_of_every_layer() -> None:
    net, inputs = make_cnn().eval(), torch.rand(8, 1, 6, 6)
    before = weights(net)
    with recorded_statistics(net) as distances:
        net(inputs)
    assert len(distances) == 3
    first: Any = net.body.layers[0]  # type: ignore[index]
    seen = first[0](inputs)
    expected = statistics_distance(seen, first[1].running_mean, first[1].running_var)
    assert distances[0].item() == pytest.approx(expected.item())
    net(inputs)
    assert len(distances) == 3  # the hooks are gone
    assert torch.equal(before, weights(net))


def test_balance_is_zero_for_uniform_answers_and_one_for_a_single_class() -> None:
    everything, collapsed = torch.eye(4) * 100, torch.tensor([[100.0, 0, 0, 0]] * 4)
    among = torch.ones(4, dtype=torch.bool)
    assert balance(everything, among).item() == pytest.approx(0, abs=1e-6)
    assert balance(collapsed, among).item() == pytest.approx(1, abs=1e-6)


def test_roughness_of_a_flat_image_is_zero_and_of_a_point_by_hand() -> None:
    assert roughness(torch.ones(2, 3, 8, 8)).item() == pytest.approx(0, abs=1e-10)
    point = torch.zeros(1, 1, 9, 9)
    point[0, 0, 4, 4] = 1
    line = torch.tensor([-1.0, -0.25, 0, -0.25, -1]).exp()
    kernel = line[:, None] * line / (line.sum() ** 2)
    expected = (kernel.square().sum() - kernel[2, 2] ** 2 + (1 - kernel[2, 2]) ** 2) / 81
    assert roughness(point).item() == pytest.approx(expected.item(), rel=1e-5)


def test_weights_of_old_and_new_classes_by_hand() -> None:
    old, seen = torch.arange(100) < 20, torch.arange(100) < 60
    found = weigh(old, seen)
    assert [found[0].item(), found[30].item()] == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 64, 64), (1, 6, 6)])
def test_generated_images_have_the_shape_and_the_moments_of_normalised_ones(shape: tuple[int, ...]) -> None:
    made = ImageGenerator(shape, 10, 8)(torch.randn(4, 10))
    assert made.shape == (4, *shape)
    assert made.mean().item() == pytest.approx(0, abs=1e-4)
    assert made.var().item() == pytest.approx(1, abs=0.05)


def test_which_part_each_loss_reaches(stream: Stream) -> None:
    method, batch = second_task(stream), first_batch(stream, 1)
    inputs, labels = method.with_dreams(batch)
    assert set(labels[16:].tolist()) <= {0, 1}
    old: Any = method.old_net.copy
    head, body = list(method.net.head.parameters()), list(method.net.body.parameters())

    def reached(loss: Tensor, parts: list[nn.Parameter]) -> bool:
        found = torch.autograd.grad(loss, parts, retain_graph=True, allow_unused=True)
        return any(part is not None and bool(part.any()) for part in found)

    features = method.net.features(inputs)
    local = method.weighted(method.net.head(features[:16]) + method.only_new, batch.labels)
    rows = torch.autograd.grad(local, head[0], retain_graph=True)[0].abs().sum(1)
    assert rows[:2].tolist() == [0, 0]
    assert rows[2:4].min() > 0
    on_head = method.weighted(method.net.head(features.detach()) + method.only_seen, labels)
    assert reached(on_head, head)
    assert not reached(on_head, body)
    moved = head_distance(features, old.features(inputs).detach() + 1, old.head.weight, method.old)
    assert reached(moved, body)
    assert not reached(moved, head)
    assert old.head.weight.grad is None


def test_the_terms_of_a_step_written_out(stream: Stream) -> None:
    method, batch = second_task(stream), first_batch(stream, 1)
    state = method.draws.generator.get_state()
    inputs, labels = method.with_dreams(batch)
    method.draws.generator.set_state(state)
    features, old = method.net.features(inputs), method.old_net.copy
    assert isinstance(old, Classifier)
    logits = method.net.head(features)
    plain = cross_entropy(logits[:, :4], labels, reduction="none")  # two old classes of four: weights 1 / 2
    apart = (features - old.features(inputs)) @ old.head.weight[:2].t()
    expected = {
        "current": cross_entropy(logits[:16, 2:4], batch.labels - 2).item() / 2,
        "head": plain.mean().item() / 2,
        "distance": 0.1 * apart.square().mean().item(),
    }
    found = method.observe(batch, optimizer_of(method))
    assert {name: term.item() for name, term in found.items()} == pytest.approx(expected, rel=1e-4)


def test_old_net_and_generator_are_constant_in_a_task_and_only_its_phase_trains_the_generator(
    stream: Stream,
) -> None:
    method = second_task(stream)
    before = state_bytes(method)
    method.observe(first_batch(stream, 1), optimizer_of(method))
    after = state_bytes(method)
    assert {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])} == {"net"}
    train_phase(method, stream[1], "generator")
    trained = state_bytes(method)
    moved = {key.split(".")[0] for key in after if not torch.equal(after[key], trained[key])}
    assert moved == {"generator", "old_net"}  # the old net is the one of now
    assert [phase.name for phase in method.phases(stream[2])] == [MAIN]  # nothing comes after the last task


def test_the_generator_s_optimiser_goes_on_from_task_to_task(stream: Stream) -> None:
    method = make(stream)
    learn(method, tasks(stream, 2), epochs=1)
    state = method.get_extra_state()
    assert state
    assert {int(each["step"]) for each in state["state"].values()} == {6}  # three in each task
    again = make(stream)
    again.load_state_dict(method.state_dict())
    made = again.make_adam(again.generator.parameters())
    first, moments = next(iter(made.state.values())), state["state"][0]
    assert torch.equal(first["exp_avg"], moments["exp_avg"])
    assert torch.equal(first["exp_avg_sq"], moments["exp_avg_sq"])


def test_no_bias_of_the_generator_stands_in_front_of_batch_norm() -> None:
    layers = list(ImageGenerator((3, 32, 32), 10, 8).layers)
    pairs = [(one, two) for one, two in pairwise(layers) if isinstance(one, nn.Conv2d)]
    assert [one.bias is None for one, _ in pairs] == [isinstance(two, nn.BatchNorm2d) for _, two in pairs]


def test_the_generator_learns_what_the_old_net_knows(stream: Stream) -> None:
    method = make(stream, make_cnn())
    learn(method, first_task(stream), epochs=4)
    adam, terms = torch.optim.Adam(method.generator.parameters(), lr=1e-2), []
    for _ in range(30):
        terms.append(sum(term.item() for term in method.dream(first_batch(stream), adam).values()))
    assert terms[-1] < terms[0] / 2


def test_one_task_is_sgd_to_the_bit(stream: Stream) -> None:
    one = Stream(stream.scenario, (tuple(range(6)),), stream.input_shape, stream.make)
    method = make(one)
    learn(method, one)
    assert torch.equal(weights(method.net), final_weights("sgd", one))


def test_features_instead_of_images_are_refused(stream: Stream) -> None:
    flat = stream[0].with_train(Split(torch.rand(4, 5), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(ConfigError, match="abd needs images"):
        make(stream).begin_task(flat)
