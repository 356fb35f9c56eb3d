"""Compiled nets: the same numbers to rounding, few variants, and a run that resumes to the bit."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compare import assert_same
from support.steps import first_batch, make_cnn, net_for, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch._dynamo.utils import counters

from strongreplay.data.streams import Stream
from strongreplay.methods.base import Method
from strongreplay.methods.dualprompt import DualPrompt
from strongreplay.methods.ser import SER
from strongreplay.protocol import derive_generator
from strongreplay.testing import small_stream
from strongreplay.training.precision import Precision
from strongreplay.training.settings import TrainConfig
from strongreplay.training.trainer import Trainer

CPU = torch.device("cpu")


def learn(stream: Stream, settings: dict[str, Any], saved: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """States after the first and after the second task; from a saved state, the second task only."""
    view, train = stream.test_view, TrainConfig(batch_size=24, **settings)
    method = SER(make_net(), make_problem(stream))
    generators = {"order": derive_generator(0, "order")}
    trainer = Trainer(method, view, view, train, generators, num_tasks=2)
    if saved:
        trainer.load(saved, 4)
    else:
        trainer.learn(stream[0])
    first = copied(trainer.state())
    trainer.index = 1
    trainer.learn(stream[1])
    return first, copied(trainer.state())


def copied(state: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda value: value.clone() if hasattr(value, "clone") else value, state
    )


def resume_elsewhere(settings: dict[str, Any], saved: dict[str, Any]) -> tuple[Any, int, int]:
    """In a process of its own: the resumed state, and the graphs found in the cache and compiled anew."""
    torch.set_num_threads(1)
    _, state = learn(small_stream(), settings, saved)
    found = counters["inductor"]
    return state, found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's compiler uses it itself
def test_compiled_nets_learn_the_same_and_another_process_reads_them_and_resumes_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = {"precision": "bf16"}
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    stream, before = small_stream(), counters["stats"]["unique_graphs"]
    first, straight = learn(stream, low | {"compile": True})
    # Live net in training, live net judged, old net. The batches of 24 and of 8 rows share a variant.
    assert counters["stats"]["unique_graphs"] - before == 3
    with ProcessPoolExecutor(1, get_context("spawn")) as another:
        resumed, hits, misses = another.submit(resume_elsewhere, low | {"compile": True}, first).result(120)
    assert hits > 0
    assert misses == 0
    assert_same(straight, resumed)
    _, plain = learn(stream, low)
    for name, begun in make_net().state_dict().items():  # rounding changes little of what is learnt
        key = f"net.{name}"
        learnt, apart = plain["method"][key] - begun, plain["method"][key] - straight["method"][key]
        assert apart.norm() < 0.02 * learnt.norm(), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_compiled_convolutions_take_batches_of_any_size(stream: Stream) -> None:
    """Compiled code is made for a range of sizes; the short last batch of an epoch may be outside of it."""
    method = SER(make_cnn(), make_problem(stream))
    for size in (32, 8, 16, 70):
        images = stream.test_view(stream[0].train.inputs[:size])
        plain = method.net(images)
        with Precision(TrainConfig(compile=True), CPU).applied(method):
            compiled = method.net(images)
        assert compiled.shape == plain.shape == (size, stream.num_classes)
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_compiled_prompts_have_a_row_for_each_sample(stream: Stream) -> None:
    made = DualPrompt(net_for("dualprompt"), make_problem(stream)).eval()
    for size in (24, 7):
        inputs = stream.test_view(stream[0].train.inputs[:size])
        with torch.no_grad():
            plain = made.net(inputs)
            with Precision(TrainConfig(compile=True), CPU).applied(made):
                compiled = made.net(inputs)
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


def test_a_head_that_grows_needs_no_new_variant(stream: Stream) -> None:
    """The body is compiled, the head is not: a wider head changes nothing in the body."""
    method = SER(make_cnn(), make_problem(stream))
    compiled: list[Any] = []
    precision = Precision(TrainConfig(compile=True), CPU)
    precision.compile = lambda run, module, *inputs: compiled.append(module) or run  # type: ignore[method-assign, func-returns-value]
    with precision.applied(method):
        method.observe(first_batch(stream), optimizer_of(method))
        method.grow(8, torch.Generator())
        method.observe(first_batch(stream), optimizer_of(method))
        method.observe(first_batch(stream, size=1), optimizer_of(method))  # a single sample is not compiled
    assert compiled == [method.net.body] * 2


def test_other_methods_are_not_changed_by_it(stream: Stream) -> None:
    method: Method = SER(make_cnn(), make_problem(stream))
    before = weights(method.net)
    with Precision(TrainConfig(), CPU).applied(method):
        assert "forward" not in vars(method.net.body)
    assert torch.equal(before, weights(method.net))
