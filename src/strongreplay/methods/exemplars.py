"""Exemplars: equally many of each seen class, herded or random, learnt with the next task."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from strongreplay.memory import Memory
from strongreplay.methods.base import predict_all
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Split, Task, View
from strongreplay.sampling import first_of_each, herd


def join_exemplars(task: Task, memory: Memory[LabelledSamples]) -> Task:
    """The task with all exemplars added to its training data."""
    if len(memory) == 0:
        return task
    return task.with_train(task.train.joined(Split(*memory.rows, memory.ids)))


def exemplar(chosen: Split) -> Any:
    return LabelledSamples(chosen.inputs, chosen.labels)


def unit_features(net: nn.Module, view: View, ask: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function from images to what `ask`, a part of the net, gives for them, scaled to length one."""
    return lambda images: normalize(predict_all(net, images, view, ask), dim=1)


def herd_exemplars(
    memory: Memory[Any],
    task: Task,
    num_seen: int,
    features: Callable[[Tensor], Tensor],
    device: torch.device,
    row: Callable[[Split], Any] = exemplar,
) -> None:
    """Share the memory equally by all seen classes; the task's classes are chosen anew by herding.

    `row` makes what the memory keeps of the chosen samples.
    """
    quota = memory.capacity // num_seen
    inputs, labels = task.train.inputs, task.train.labels
    present = set(labels.tolist())
    renewed = [label for label in task.classes if label in present]
    if len(memory):
        stored = memory.rows.labels.cpu()
        first = first_of_each(stored, quota)  # herding stores the best first
        memory.keep(first[~torch.isin(stored[first], torch.tensor(renewed, dtype=stored.dtype))])
    for label in renewed:
        rows = torch.nonzero(labels == label).flatten()
        rows = rows[herd(features(inputs[rows]), quota).to(rows.device)]
        chosen = task.train.take(rows).to(device)
        memory.append(row(chosen), chosen.ids)


def draw_exemplars(
    memory: Memory[LabelledSamples], task: Task, generator: torch.Generator, device: torch.device
) -> None:
    """Share the memory equally by all seen classes, a remainder by the latest; rows are random."""
    labels = task.train.labels.cpu()
    stored = memory.rows.labels.cpu() if len(memory) else labels[:0]
    renewed = [label for label in task.classes if label in labels]
    seen = [*(label for label in dict.fromkeys(stored.tolist()) if label not in renewed), *renewed]
    quota, more = divmod(memory.capacity, len(seen))
    sizes = {label: quota + (place >= len(seen) - more) for place, label in enumerate(seen)}
    kept = [
        torch.nonzero(stored == label).flatten()[: sizes[label]] for label in seen if label not in renewed
    ]
    if kept:
        memory.keep(torch.cat(kept))
    for label in renewed:
        rows = torch.nonzero(labels == label).flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)[: sizes[label]]]
        chosen = task.train.take(rows.to(task.train.labels.device)).to(device)
        memory.append(exemplar(chosen), chosen.ids)
