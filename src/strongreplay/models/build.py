"""Make a new, untrained model: net, method and views, chosen for its samples."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from strongreplay.data.user_data import Chunk
from strongreplay.errors import ConfigError, DataError
from strongreplay.memory import Memory
from strongreplay.methods import Method, method_row
from strongreplay.methods.base import evaluation_mode
from strongreplay.models.held_out import no_samples
from strongreplay.models.model import Model
from strongreplay.models.samples import SampleIndex
from strongreplay.models.settings import OWN, ModelSettings
from strongreplay.models.views import choose_moments, plain_view, training_view
from strongreplay.nets import Classifier, GrowingHead, build_net, seeded_init
from strongreplay.nets.choice import choose_net
from strongreplay.protocol import Problem, derive_generator


def first_model(
    settings: ModelSettings, chunk: Chunk, device: torch.device, own_net: nn.Module | None = None
) -> Model:
    """A model for samples like these; its initial number of outputs follows from the labels of the chunk."""
    shape = tuple(chunk.inputs.shape[1:])
    mean, std = choose_moments(settings, chunk.inputs)
    if len(shape) == 3 and shape[1] != shape[2] and own_net is None:
        raise DataError(f"images must be square, got {shape[2]} x {shape[1]} pixels; give a side")
    if settings.net.name == "auto":
        chosen = choose_net(shape, settings.net.width)
        settings = replace(settings, net=settings.net.model_copy(update=chosen))
    classes = settings.learner.classes
    num_classes = len(classes) if classes is not None else len(set(chunk.labels)) + settings.learner.reserve
    return new_model(settings, shape, mean, std, device, num_classes, 1, own_net)


def new_model(
    settings: ModelSettings, shape: tuple[int, ...], mean: list[float], std: list[float],
    device: torch.device, num_classes: int, capacity: int, own_net: nn.Module | None = None,
) -> Model:  # fmt: skip
    """A model with a given number of outputs; its initial weights are drawn from the seed in the settings."""
    seed = settings.learner.seed
    generators = {
        name: derive_generator(seed, name) for name in ("order", "views", "replayed views", "growth")
    }
    with_draws = partial(training_view, settings, shape, mean, std)
    net = make_net(settings, shape, num_classes, own_net)
    if settings.learner.classes is None:
        net.head = GrowingHead.of(net.head)
    test_view = plain_view(settings, shape, mean, std)
    problem = Problem(num_classes, 1, with_draws(generators["replayed views"]), test_view, seed)
    method = make_method(settings, net, problem, capacity).to(device)
    samples = SampleIndex(settings.learner.store if len(shape) == 3 else "raw", shape)
    view = with_draws(generators["views"])
    return Model(settings, shape, mean, std, [], method, generators, no_samples(shape), samples, device, view)


def make_method(settings: ModelSettings, net: Classifier, problem: Problem, capacity: int) -> Method:
    """The method with a memory of this capacity, which keeps the ids of its rows."""
    row = method_row(settings.learner.method)
    size = {"memory_size": capacity} if row.has_memory else {}
    method = row.build(net, problem, row.config.model_validate(settings.method.model_dump() | size))
    if (memory := getattr(method, "memory", None)) is not None:
        if not (isinstance(memory, Memory) and "images" in memory.row_type._fields):
            raise ConfigError(
                f"{settings.learner.method}: a kept model has its samples in `method.memory`, which must "
                "be a strongreplay.memory.Memory with a column `images`"
            )
        memory.keep_ids()
    return method


def make_net(
    settings: ModelSettings, shape: tuple[int, ...], num_classes: int, own_net: nn.Module | None
) -> Classifier:
    """The net that the settings name, or a copy of the user's net with a new head."""
    generator = derive_generator(settings.learner.seed, "net")
    if own_net is None:
        if settings.net.name == OWN:
            raise ConfigError(
                "this model has a net of its user's own; give it again: Learner.load(path, net=...)"
            )
        return build_net(settings.net.name, shape, num_classes, generator, **settings.net.options)
    net = deepcopy(own_net) if isinstance(own_net, Classifier) else with_head(own_net, shape, num_classes)
    with seeded_init(generator):
        net.head = nn.Linear(net.head.in_features, num_classes)
    return net


def with_head(own_net: nn.Module, shape: tuple[int, ...], num_classes: int) -> Classifier:
    """A classifier whose features are the outputs of a copy of the user's net."""
    body = deepcopy(own_net)
    with torch.no_grad(), evaluation_mode(body):
        features = body(torch.zeros(2, *shape))
    if features.dim() != 2:
        raise ConfigError(
            f"net: must answer with (B, D) features, got shape {tuple(features.shape)}; flatten them"
        )
    return Classifier(body, features.shape[1], num_classes)
