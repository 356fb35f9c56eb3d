"""Estimates the time of a run: the number of steps from its configuration, seconds per step from a trial.

The trial times a plain training step of the same net on random inputs of the same shape and batch size (or a
part of a large batch). The row of a method in METHODS says how many plain steps one of its steps costs. The
estimate is right to a factor of two.
"""

import time
from functools import cache
from math import ceil, prod
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import describe_stream
from strongreplay.nets import build_net
from strongreplay.protocol import derive_generator
from strongreplay.runs.config import RunConfig

TRIAL_SECONDS = 0.5
TRIAL_NUMBERS = 2**17  # input values per trial step: 42 CIFAR images; 512 TinyImageNet images take minutes
Trial = tuple[str, int | None, tuple[int, ...], int, int]  # net, width, input shape, classes, batch size


def num_steps(config: RunConfig) -> int:
    """Training steps of all tasks, without exemplars that a method adds to a task."""
    train, sizes = config.train, describe_stream(config.stream, config.data.options).num_train
    if config.row.on_union:
        sizes = (sum(sizes),)
    return sum(ceil(size / train.batch_size) * train.epochs_of(index) for index, size in enumerate(sizes))


def seconds(config: RunConfig) -> float:
    """Estimated seconds of training, without evaluation."""
    return num_steps(config) * config.row.cost * plain_step(trial_of(config))


def trial_of(config: RunConfig) -> Trial:
    info = describe_stream(config.stream, config.data.options)
    net, size = config.net, config.train.batch_size
    return net.name, net.width, info.input_shape, info.num_classes, size


@cache
def plain_step(trial: Trial) -> float:
    """Seconds of a forward pass, backward pass and update; the first, slower step is not counted."""
    name, width, shape, num_classes, batch_size = trial
    size = min(batch_size, TRIAL_NUMBERS // prod(shape))
    options = {} if width is None else {"width": width}
    generator = derive_generator(0, "trial")
    net = build_net(name, shape, num_classes, generator, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    inputs = torch.rand(size, *shape, generator=generator)
    labels = torch.randint(num_classes, (size,), generator=generator)
    times: list[float] = []
    while len(times) < 3 or sum(times) < TRIAL_SECONDS:
        start = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return median(times[1:]) * batch_size / size
