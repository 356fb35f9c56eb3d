"""The contracts of a stream."""

from collections.abc import Callable

import torch

from strongreplay.data.streams import Stream
from strongreplay.protocol import derive_generator
from strongreplay.testing.case import expect


def check_stream(make: Callable[[], Stream] | Stream) -> None:
    """Check a stream: tasks have data and correct labels, a second build is equal, views give floats."""
    first, again = (make, make) if isinstance(make, Stream) else (make(), make())
    expect(len(first) > 0, "The stream has no tasks.", "Give at least one.")
    for index in range(len(first)):
        task, classes = first[index], set(first.task_classes[index])
        for part, split in (("train", task.train), ("test", first.test(index))):
            where = f"Task {index}, {part}:"
            expect(len(split) > 0, f"{where} no samples.", "Leave the task out, or give it some.")
            labels = set(split.labels.tolist())
            known = labels <= classes if part == "test" or not first.train_classes else True
            expect(known, f"{where} labels {labels} are not of its classes {classes}.", "Fix task_classes.")
            shape = tuple(split.inputs.shape[1:])
            expect(
                shape == tuple(first.input_shape), f"{where} inputs are {shape}.", f"Say input_shape={shape}."
            )
        same = torch.equal(task.train.inputs, again[index].train.inputs)
        expect(same, f"Task {index} differs when it is made again.", "Draw from a generator of the seed.")
        view = first.train_view(derive_generator(0, "views"))
        inputs = view(task.train.inputs[:2])
        expect(
            inputs.is_floating_point(), "The view gives no floats.", "Use scale from strongreplay.data.views."
        )
