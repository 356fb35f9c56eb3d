"""SLDA and NCM against the formulas over all samples at once."""

import numpy as np
import pytest
import torch
from sklearn.covariance import oas  # type: ignore[import-untyped]
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # type: ignore[import-untyped]
from sklearn.neighbors import NearestCentroid  # type: ignore[import-untyped]
from support.tiny_stream import make_problem
from torch import Tensor

from strongreplay.data.streams import Stream
from strongreplay.methods import build_method
from strongreplay.methods.ncm import NCM
from strongreplay.methods.slda import SLDA, oracle_share
from strongreplay.nets import linear
from strongreplay.protocol import Batch, Split, Task

NUM_CLASSES, NUM_FEATURES = 5, 12


def draw_samples(seed: int = 0, count: int = 300) -> tuple[Tensor, Tensor]:
    """Uneven classes with one covariance that is far from round, at a distance from zero."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (count,), generator=generator) * torch.randint(
        2, (count,), generator=generator
    )
    mixing = torch.randn(NUM_FEATURES, NUM_FEATURES, generator=generator)
    centres = 2 * torch.randn(NUM_CLASSES, NUM_FEATURES, generator=generator) + 5
    return centres[labels] + torch.randn(count, NUM_FEATURES, generator=generator) @ mixing, labels


def deviations(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The distance of each sample to its class mean, and the means."""
    means = torch.stack([features[labels == number].mean(0) for number in range(NUM_CLASSES)])
    return features - means[labels], means


def learnt(name: str, stream: Stream, order: Tensor, batch_size: int, **settings: float) -> NCM:
    features, labels = draw_samples()
    method = build_method(name, linear((NUM_FEATURES,), NUM_CLASSES), make_problem(stream), **settings)
    assert isinstance(method, NCM)
    for rows in order.split(batch_size):
        batch = Batch(rows, features[rows], features[rows], labels[rows])
        method.observe(batch, torch.optim.SGD(method.net.parameters(), lr=0.1))
    data = Split(features, labels)
    method.end_task(Task(0, tuple(range(NUM_CLASSES)), data, data))
    return method


def test_slda_in_any_order_and_batches_answers_as_lda_of_all_samples(stream: Stream) -> None:
    features, labels = draw_samples()
    whole = LinearDiscriminantAnalysis(solver="lsqr").fit(features.numpy(), labels.numpy())
    unseen = draw_samples(seed=1)[0]
    # Its scores contain the shares of the classes; ours treat all classes alike.
    expected = (whole.decision_function(unseen.numpy()) - np.log(whole.priors_)).argmax(1)
    orders = labels.argsort(), labels.argsort(descending=True), torch.randperm(300)
    for order, size in zip(orders, (1, 7, 300), strict=True):
        answers = learnt("slda", stream, order, size, shrinkage=0).predict(unseen).argmax(1)
        assert (answers.numpy() == expected).all()


def test_a_shrunk_covariance_gives_the_scores_of_the_formula(stream: Stream) -> None:
    features, labels = draw_samples()
    inside, means = deviations(features, labels)
    covariance = inside.t() @ inside / (300 - NUM_CLASSES)
    covariance = 0.8 * covariance + 0.2 * covariance.trace() / NUM_FEATURES * torch.eye(NUM_FEATURES)
    weight = torch.linalg.solve(covariance, means.t()).t()
    expected = features @ weight.t() - (weight * means).sum(1) / 2
    found = learnt("slda", stream, torch.randperm(300), 20, shrinkage=0.2).predict(features)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)


def test_the_scatter_and_its_shrinkage_are_those_of_all_samples(stream: Stream) -> None:
    features, labels = draw_samples()
    method = learnt("slda", stream, torch.randperm(300), 11)
    assert isinstance(method, SLDA)
    inside, _ = deviations(features, labels)
    torch.testing.assert_close(method.scatter, inside.t() @ inside, rtol=1e-4, atol=1e-2)
    empirical = inside.t() @ inside / len(inside)
    _, share = oas(inside.numpy(), assume_centered=True)
    assert float(oracle_share(empirical, torch.tensor(300.0))) == pytest.approx(share, rel=1e-4)


def test_ncm_answers_with_the_nearest_mean(stream: Stream) -> None:
    features, labels = draw_samples()
    method = learnt("ncm", stream, labels.argsort(), 13)
    unseen = draw_samples(seed=1)[0]
    expected = NearestCentroid().fit(features.numpy(), labels.numpy()).predict(unseen.numpy())
    assert (method.predict(unseen).argmax(1).numpy() == expected).all()


@pytest.mark.parametrize("name", ["ncm", "slda"])
def test_in_the_middle_of_a_task_it_answers_from_what_it_has_seen(name: str, stream: Stream) -> None:
    features, labels = draw_samples()
    method = build_method(name, linear((NUM_FEATURES,), NUM_CLASSES), make_problem(stream))
    seen = (labels < 2).nonzero().flatten()
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
    method.observe(Batch(seen, features[seen], features[seen], labels[seen]), optimizer)
    middle = method.predict(features)
    assert set(middle.argmax(1).tolist()) == {0, 1}
    data = Split(features, labels)
    method.end_task(Task(0, (0, 1), data, data))
    torch.testing.assert_close(method.predict(features), middle)


def test_one_sample_a_class_is_enough(stream: Stream) -> None:
    features, labels = torch.eye(NUM_CLASSES, NUM_FEATURES), torch.arange(NUM_CLASSES)
    method = build_method("slda", linear((NUM_FEATURES,), NUM_CLASSES), make_problem(stream))
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
    method.observe(Batch(labels, features, features, labels), optimizer)
    assert torch.equal(method.predict(features).argmax(1), labels)
