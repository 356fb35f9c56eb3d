"""Fixtures of all tests: a stream of three tasks of two classes of 6 x 6 images."""

import os

import pytest
import torch
from support.tiny_stream import NUM_CLASSES, NUM_TASKS, make_split

from strongreplay.data.streams import Stream, split_by_class
from strongreplay.protocol import Split

pytest_plugins = ("support.commands", "support.stores")  # their fixtures
torch.set_num_threads(1)  # small tensors: more threads only wait for each other
os.environ["OMP_NUM_THREADS"] = "1"  # the same for processes that tests start
WAITING = ("test_on_ray.py", "test_on_slurm.py")  # they come first: mypy uses the time they wait


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in WAITING)


@pytest.fixture(scope="session")
def train_split() -> Split:
    return make_split(40, seed=1)


@pytest.fixture(scope="session")
def test_split() -> Split:
    return make_split(20, seed=2)


@pytest.fixture
def stream(train_split: Split, test_split: Split) -> Stream:
    return split_by_class(train_split, test_split, NUM_CLASSES, NUM_TASKS)
