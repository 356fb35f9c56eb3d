"""Three tasks of two classes of 6 x 6 images that a small net learns in a few steps."""

import torch
from torch import nn

from strongreplay.data.streams import Stream
from strongreplay.methods.base import MAIN, Method
from strongreplay.nets import Classifier, build_net
from strongreplay.protocol import Problem, Split, Task, derive_generator
from strongreplay.training.engine import PhaseDefaults, PhaseLoop, TaskProgress, train_epoch
from strongreplay.training.events import Listener
from strongreplay.training.optimizers import with_gradients

NUM_CLASSES, NUM_TASKS = 6, 3


def make_split(per_class: int, seed: int) -> Split:
    """A bright 3 x 4 patch at the class's own place, over noise, in shuffled order."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(NUM_CLASSES).repeat(per_class)[
        torch.randperm(NUM_CLASSES * per_class, generator=generator)
    ]
    images = torch.randint(0, 100, (len(labels), 1, 6, 6), dtype=torch.uint8, generator=generator)
    for number, label in enumerate(labels.tolist()):
        row, column = divmod(label, 3)
        images[number, :, 3 * row : 3 * row + 3, 2 * column : 2 * column + 2] += 150
    return Split(images, labels)


def make_net(seed: int = 0, num_classes: int = NUM_CLASSES) -> Classifier:
    return build_net("mlp", (1, 6, 6), num_classes, derive_generator(seed, "net"), width=32)


def make_problem(stream: Stream, seed: int = 0) -> Problem:
    view = stream.train_view(derive_generator(seed, "replayed views"))
    images = make_split(10, seed=3).inputs  # for methods that need unlabelled ones
    return Problem(stream.num_classes, len(stream), view, stream.test_view, seed, images)


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten().clone() for value in module.parameters()])


def train_phase(method: Method, task: Task, name: str) -> None:
    """One phase of a task from its beginning to its end, as the trainer trains it."""
    phase = next(phase for phase in method.phases(task) if phase.name == name)
    if phase.begin:
        phase.begin()
    defaults = PhaseDefaults(lambda images: images, 1, 32, torch.Generator())
    loop = PhaseLoop(method, task, phase, defaults, TaskProgress(name))
    optimizer = phase.make_optimizer(method.net, lambda given: torch.optim.SGD(given, lr=0.1))
    with with_gradients(optimizer, phase.parameters is not None):
        while loop.is_open:
            train_epoch(loop, optimizer, Listener())


def begin_learning(method: Method, task: Task) -> Task:
    """All that comes before the first step of the main phase."""
    task = method.begin_task(task)
    names = [phase.name for phase in method.phases(task)]
    for name in names[: names.index(MAIN)]:
        train_phase(method, task, name)
    main = method.phases(task)[names.index(MAIN)]
    if main.begin:
        main.begin()
    return task


def finish_learning(method: Method, task: Task) -> None:
    """All that comes after the last step of the main phase."""
    names = [phase.name for phase in method.phases(task)]
    for name in names[names.index(MAIN) + 1 :]:
        train_phase(method, task, name)
    method.end_task(task)
