"""Data that stay on the host: each batch is on its way to the device before the step before it."""

from typing import Any

import pytest
import torch
from support.steps import learn
from support.tiny_stream import make_net, make_problem, weights

from strongreplay.data.streams import Stream
from strongreplay.methods.er import ER, ERConfig
from strongreplay.simulated_device import SimulatedDevice
from strongreplay.training import engine
from strongreplay.training.streaming import stream_batches


def test_the_next_batch_is_copied_before_this_one_is_used() -> None:
    images, parts = torch.arange(20).view(10, 2), torch.randperm(10).split(4)
    with SimulatedDevice() as device:
        counts = []
        for rows, found in zip(parts, stream_batches(images, parts, device.name), strict=True):
            counts.append(device.num_to_device)
            assert found.device == device.name
            assert torch.equal(found.cpu(), images[rows])
    assert counts == [2, 3, 3]
    assert device.bytes_to_device == images.nbytes


def test_on_the_same_device_rows_are_gathered_when_they_are_used() -> None:
    images, parts = torch.arange(20).view(10, 2).clone(), torch.arange(10).split(4)
    batches = stream_batches(images, parts, images.device)
    next(batches)
    images.zero_()
    assert not next(batches).any()


def test_an_abandoned_epoch_ends_its_thread() -> None:
    with SimulatedDevice() as device:
        batches: Any = stream_batches(torch.rand(100, 2), torch.arange(100).split(1), device.name)
        next(batches)
        batches.close()
    import threading

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.mark.slow
def test_training_with_data_on_the_host_learns_the_same(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> ER:
        return ER(make_net(), make_problem(stream), ERConfig(memory_size=24))

    plain = trained()
    learn(plain, stream, epochs=1)
    monkeypatch.setattr(engine, "RESIDENT_BYTES", 0)
    with SimulatedDevice() as device:
        method = trained().to(device.name)
        learn(method, stream, epochs=1)
        found = torch.cat([p.detach().cpu().flatten() for p in method.net.parameters()])
    assert torch.equal(found, weights(plain.net))
