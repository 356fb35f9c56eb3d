"""Probabilities of methods without a softmax loss: as sure as they are right, with the same answers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from strongreplay.learner import Learner
from strongreplay.methods.ncm import NCM
from strongreplay.models.calibrate import best_factor
from strongreplay.nets import build_net
from strongreplay.protocol import derive_generator

CLASSES, SIZE = 6, 60


def draw(per_class: int, seed: int, classes: int = CLASSES) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Overlapping clouds around fixed means."""
    means = np.random.default_rng(0).normal(size=(CLASSES, SIZE)) * 0.35
    labels = np.arange(classes).repeat(per_class)
    noise = np.random.default_rng(seed).normal(size=(len(labels), SIZE))
    return (means[labels] + noise).astype(np.float32), labels


@pytest.mark.parametrize("wrong", [0, 1, 5])
def test_the_factor_by_hand(wrong: int) -> None:
    """All samples have logits (7, 0) and are labelled 0, but for some."""
    count, labels = 20, torch.zeros(20, dtype=torch.int64)
    labels[:wrong] = 1
    right = (count + 1) / (count + 2)
    target = ((count - wrong) * right + wrong * (1 - right)) / count  # the share that the best factor gives
    found = best_factor(torch.tensor([[7.0, 0.0]]).double().expand(count, 2), labels)
    assert torch.sigmoid(torch.tensor(7 * found)).item() == pytest.approx(target, abs=1e-3)


@pytest.mark.parametrize("method", ["slda", "ncm"])
def test_probabilities_are_as_sure_as_answers_are_right(method: str, tmp_path: Path) -> None:
    net = build_net("mlp", (SIZE,), 1, derive_generator(0, "net"))  # its features are no normal clouds
    learner = Learner(net, method, settings={"learner.val": 0.2})
    learner.learn(*draw(120, 1, classes=3))
    inputs, labels = draw(120, 2)
    learner.learn(inputs, labels, max_drop=100)
    inputs, labels = draw(200, 3)
    sure = learner.predict_proba(inputs)
    accuracy = (sure.argmax(1) == labels).mean()
    assert abs(sure.max(1).mean() - accuracy) < 0.05

    kept = learner.model_.method
    assert isinstance(kept, NCM)
    logits = learner.model_.scores(torch.from_numpy(inputs))
    plain: Tensor = logits / kept.scale
    before = float(plain.double().softmax(1).max(1).values.mean())
    assert abs(before - accuracy) > 0.1
    assert torch.equal(plain.argmax(1), logits.argmax(1))

    learner.save(tmp_path / "kept")
    assert np.array_equal(Learner.load(tmp_path / "kept", net=net).predict_proba(inputs), sure)
    state = {key: value for key, value in kept.state_dict().items() if key != "scale"}  # an older state
    kept.load_state_dict(state)
    assert kept.scale == 1
