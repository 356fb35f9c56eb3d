"""Rates against golden sequences and against PyTorch's own schedulers."""

from math import cos, pi

import pytest
import torch

from strongreplay.training.rates import cosine, restarts, stepped


def test_stepped_equals_the_scheduler_of_pytorch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.03)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5], 0.1)
    rate = stepped(0.03, (2, 5), 0.1)
    for epoch in range(8):
        assert rate(epoch, 0.5) == optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


def test_restarts_give_the_published_sequence() -> None:
    rate = restarts(0.05, 0.0005)
    golden = [0.005, 0.05, 0.05, 0.02525, 0.05, 0.04275, 0.02525, 0.00775, 0.05]
    assert [rate(epoch, 0.0) for epoch in range(9)] == pytest.approx(golden, abs=5e-6)
    assert rate(256, 0.0) == pytest.approx(0.05)  # 1 + 1 + 2 + ... + 128 epochs end with a whole wave


def test_cosine_is_on_its_way_in_the_first_epoch_and_ends_at_its_floor() -> None:
    rate = cosine(0.5, 0.0005, 100, 0, 100)
    assert rate(0, 0.0) == rate(0, 0.9) == pytest.approx(0.0005 + 0.4995 * (1 + cos(pi / 100)) / 2)
    assert rate(99, 0.0) == pytest.approx(0.0005)


def test_the_warm_up_aims_at_the_wave_of_a_later_task() -> None:
    rate = cosine(0.5, 0.0005, 500, 10, 100)  # a long first task
    assert rate(0, 0.0) == pytest.approx(0.01)
    assert rate(9, 1.0) == pytest.approx(0.48778, abs=5e-6)
    assert rate(5, 0.0) == pytest.approx((0.01 + 0.48778) / 2, abs=5e-6)
    assert rate(10, 0.0) == pytest.approx(0.0005 + 0.4995 * (1 + cos(pi * 11 / 500)) / 2)
