"""Streams with mixed tasks: blurry tasks share classes, and boundary-free tasks overlap in time.

Only training data move. Each task keeps its test data, so scores are comparable with other streams.

Blurry, with a share M: of every class in every task, round(M x its samples) random samples move, each to
another task drawn uniformly. With tasks of equal size, a share M of each task's samples then comes from the
other tasks. This is Blurry-M of Bang et al. 2021 (Rainbow Memory), after Aljundi et al. 2019 (GSS); in the
terms of Koh et al. 2022 it is i-Blurry-0-M, without disjoint classes.

Boundary-free: a sample of task t (after blurring) arrives at the time t + u + e, with u uniform in [0, 1) and
e normal with deviation SPREAD, in lengths of a task. Samples are read once, in the order of their times. The
stream is evaluated once per task, after as many samples as the tasks so far have.
"""

from dataclasses import replace

import torch
from torch import Tensor

from strongreplay.data.tasks import Part, Stream, join
from strongreplay.errors import ConfigError
from strongreplay.protocol import Split, derive_generator

SPREAD = 0.25  # lengths of a task: about half a task before and after a boundary is mixed


def mix(stream: Stream, seed: int, blurry: float | None = None, has_boundaries: bool = True) -> Stream:
    """The stream with some samples in other tasks, or with tasks that overlap in time, or both."""
    if len(stream) < 2:
        raise ConfigError("data.blurry and data.boundaries=false need a stream of at least 2 tasks, got 1")
    columns = [stream.make(task, "train").labels for task in range(len(stream))]
    labels, counts = torch.cat(columns), torch.tensor([len(column) for column in columns])
    home = torch.arange(len(stream)).repeat_interleave(counts)  # the task each sample comes from
    rows = torch.cat([torch.arange(count) for count in counts.tolist()])  # its row there
    task = move_share(labels, home, len(stream), blurry, seed) if blurry else home
    times = task if has_boundaries else arrival_times(task, seed)
    order = times.argsort(stable=True)
    parts = order.split(task.bincount(minlength=len(stream)).tolist())

    def make(index: int, part: Part) -> Split:
        if part == "test":
            return stream.make(index, "test")
        return gather(stream, home[parts[index]], rows[parts[index]])

    classes = tuple(tuple(labels[part].unique().tolist()) for part in parts)
    return replace(stream, make=make, train_classes=classes, in_order=not has_boundaries)


def move_share(labels: Tensor, home: Tensor, num_tasks: int, share: float, seed: int) -> Tensor:
    """The task of each sample after a share of every class in every task has moved to another task."""
    generator, task = derive_generator(seed, "blurry"), home.clone()
    groups = home * (int(labels.max()) + 1) + labels
    for group in groups.unique().tolist():
        members = torch.nonzero(groups == group).flatten()
        order = torch.randperm(len(members), generator=generator)
        leaving = members[order[: round(share * len(members))]]
        other = torch.randint(num_tasks - 1, (len(leaving),), generator=generator)
        task[leaving] = other + (other >= home[leaving])  # any task but its own
    return task


def arrival_times(task: Tensor, seed: int) -> Tensor:
    generator = derive_generator(seed, "arrival times")
    within = torch.rand(len(task), dtype=torch.float64, generator=generator)
    return task + within + SPREAD * torch.randn(len(task), dtype=torch.float64, generator=generator)


def gather(stream: Stream, home: Tensor, rows: Tensor) -> Split:
    """Training samples of several tasks, in the given order."""
    parts, places = [], []
    for task in home.unique().tolist():
        place = torch.nonzero(home == task).flatten()
        places.append(place)
        parts.append(stream.make(task, "train").take(rows[place]))
    return join(parts).take(torch.cat(places).argsort())
