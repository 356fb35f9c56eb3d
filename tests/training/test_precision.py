"""Low precision: what computes in bfloat16, and what stays in float32."""

from typing import Any

import pytest
import torch
from support.steps import first_batch, make_cnn, optimizer_of
from support.tiny_stream import make_problem
from torch import Tensor, nn

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods.gradients import gradient_products
from strongreplay.methods.icarl import ICaRL
from strongreplay.methods.ser import SER
from strongreplay.nets import FeatureNet
from strongreplay.nets.numerics import Entry, full_precision
from strongreplay.runs.config import resolve
from strongreplay.storage.records import fingerprint
from strongreplay.training.precision import Precision
from strongreplay.training.settings import TrainConfig

BF16 = TrainConfig(precision="bf16")
CPU = torch.device("cpu")


class DtypeSpy:
    """Notes the type of a layer's outputs."""

    def __init__(self, layer: nn.Module) -> None:
        self.seen: list[torch.dtype] = []
        layer.register_forward_hook(lambda _, __, out: self.seen.append(out.dtype))


def test_the_body_computes_as_under_autocast_and_the_head_in_float32(stream: Stream) -> None:
    method, inputs = SER(make_cnn(), make_problem(stream)), first_batch(stream).inputs
    net: Any = method.net
    with torch.autocast("cpu", torch.bfloat16):
        features = net.body(inputs)
    assert features.dtype == torch.bfloat16
    with Precision(BF16, CPU).applied(method):
        logits, low = method.predict(inputs), net.features(inputs)
        with full_precision():
            full = method.predict(inputs)
    assert torch.equal(low, features.float())
    assert torch.equal(logits, net.head(features.float()))
    assert torch.equal(full, net(inputs))
    assert not torch.equal(full, logits)


def test_a_step_keeps_weights_gradients_terms_and_memory_in_float32(stream: Stream) -> None:
    method = SER(make_cnn(), make_problem(stream))
    method.end_task(stream[0])
    frozen: Any = method.old_net.copy
    body: Any = method.net.body
    spies = [DtypeSpy(body.layers[0][0]), DtypeSpy(frozen.body.layers[0][0])]
    with Precision(BF16, CPU).applied(method):
        for _ in range(2):
            terms = method.observe(first_batch(stream), optimizer_of(method))
        method.old_net.take()  # a copy made inside computes in low precision too
        assert method.old_net.copy is not None
        entries = [(m, vars(m)["forward"]) for m in method.old_net.copy.modules() if "forward" in vars(m)]
        assert [entry.module for _, entry in entries] == [module for module, _ in entries] != []
    assert len(terms) == 4
    assert {dtype for spy in spies for dtype in spy.seen} == {torch.bfloat16}
    state = [value for value in method.state_dict().values() if isinstance(value, Tensor)]
    kept = [*state, *terms.values(), *(p.grad for p in method.net.parameters() if p.grad is not None)]
    assert {value.dtype for value in kept if value.is_floating_point()} == {torch.float32}
    assert not any(isinstance(vars(m).get("forward"), Entry) for m in method.modules())


def test_a_users_net_computes_in_low_precision_too_features_included(stream: Stream) -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 6))
    method, inputs = ICaRL(FeatureNet(layers, "3"), make_problem(stream)), first_batch(stream).inputs
    spy = DtypeSpy(layers[1])
    with Precision(BF16, CPU).applied(method):
        assert method.net(inputs).dtype == method.net.features(inputs).dtype == torch.float32
    assert spy.seen == [torch.bfloat16] * 2
    plain = SER(layers, make_problem(stream))
    with Precision(BF16, CPU).applied(plain):
        assert plain.predict(inputs).dtype == torch.float32
    assert spy.seen == [torch.bfloat16] * 3


def test_gradients_of_single_samples_are_computed_in_float32(stream: Stream) -> None:
    method, batch = SER(make_cnn(), make_problem(stream)), first_batch(stream)
    exact = gradient_products(method.net, batch.inputs, batch.labels)
    with Precision(BF16, CPU).applied(method):
        assert torch.equal(gradient_products(method.net, batch.inputs, batch.labels), exact)


def test_float32_changes_no_name_and_bfloat16_is_in_the_record() -> None:
    plain, said, low = (
        resolve("split-digits", "er", 50, settings=given).to_dict()
        for given in ({}, {"train.precision": "fp32", "train.compile": "false"}, {"train.precision": "bf16"})
    )
    assert plain == said
    assert "precision" not in plain["train"]
    assert low["train"]["precision"] == "bf16"
    assert fingerprint(low) != fingerprint(plain)


def test_float16_is_refused_where_there_is_no_cuda() -> None:
    with pytest.raises(ConfigError, match=r"fp16 needs a CUDA device, got cpu.*bf16"):
        Precision(TrainConfig(precision="fp16"), CPU)


def test_float16_is_refused_for_a_method_that_steps_without_the_optimiser() -> None:
    low = {"train.precision": "fp16"}
    assert resolve("split-digits", "er", 50, settings=low).train.precision == "fp16"
    assert resolve("split-digits", "mer", 50, settings={"train.precision": "bf16"}).train.precision == "bf16"
    with pytest.raises(ConfigError, match=r"mer changes weights without the optimiser.*take bf16 or fp32"):
        resolve("split-digits", "mer", 50, settings=low)
