"""Make a new, untrained model: net, method and views, chosen for its samples."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import prod

import torch
from torch import nn

from strongreplay.data.user_data import Chunk
from strongreplay.data.views import moments
from strongreplay.errors import ConfigError, DataError
from strongreplay.memory import Memory
from strongreplay.methods import Method, method_row
from strongreplay.models.choice import USUAL, check_width
from strongreplay.models.held_out import no_samples
from strongreplay.models.model import Model
from strongreplay.models.samples import SampleIndex
from strongreplay.models.settings import CLOSED_FORM, OWN, ModelSettings
from strongreplay.models.views import choose_moments, plain_view, training_view
from strongreplay.nets import Classifier, GrowingHead, build_net, seeded_init
from strongreplay.nets.backbones import Backbone, is_backbone
from strongreplay.nets.choice import choose_net
from strongreplay.nets.heads import body_of
from strongreplay.nets.published import EXTRA
from strongreplay.nets.vit import EXPANSION, Form
from strongreplay.protocol import Problem, derive_generator

BODY_RATE = 0.1  # of a pretrained body, as a multiple of the head's


def first_model(
    settings: ModelSettings,
    chunk: Chunk,
    device: torch.device,
    own_net: nn.Module | None = None,
    backbone: Backbone | None = None,
) -> Model:
    """A model for samples like these; its initial number of outputs follows from the labels of the chunk.

    With a frozen backbone the samples of the chunk are features of its images.
    """
    shape = backbone.shape if backbone else tuple(chunk.inputs.shape[1:])
    if backbone is None and is_backbone(settings.net.name):
        raise ConfigError(f"{settings.net.name} takes images, got samples of shape {shape}; leave out --net")
    if backbone and settings.learner.mean is None:
        mean, std = backbone_moments(settings, backbone, chunk)
    else:
        mean, std = choose_moments(settings, chunk.inputs)
    if len(shape) == 3 and shape[1] != shape[2] and own_net is None:
        raise DataError(f"images must be square, got {shape[2]} x {shape[1]} pixels; give a side")
    settings = with_net_name(settings, shape)
    if settings.net.name == "linear":
        check_width(settings.learner.method, prod(shape))
    classes = settings.learner.classes
    num_classes = len(classes) if classes is not None else len(set(chunk.labels)) + settings.learner.reserve
    if settings.net.weights is not None and backbone is None and own_net is None:
        settings, own_net = with_weights(settings, shape, num_classes)
    if backbone is None and own_net is None:
        check_trained(settings)
    return new_model(settings, shape, mean, std, device, num_classes, 1, own_net, backbone)


def with_net_name(settings: ModelSettings, shape: tuple[int, ...]) -> ModelSettings:
    """The settings, and with `auto` the net that suits the method and the samples."""
    if settings.net.name != "auto":
        return settings
    named = method_row(settings.learner.method).net  # by a method that needs it
    if settings.learner.method in CLOSED_FORM and len(shape) == 1:
        named = "linear"  # the samples are the features
    chosen = {"name": named} if named else choose_net(shape, settings.net.width)
    return replace(settings, net=settings.net.model_copy(update=chosen))


def check_trained(settings: ModelSettings) -> None:
    """Refuse a method that trains no body on a new net, whose features would be random."""
    if settings.learner.method in CLOSED_FORM and settings.net.name != "linear":
        raise ConfigError(
            f"{settings.learner.method} computes its head from features of a trained net, and a new "
            f"{settings.net.name} is not trained; give --net {USUAL} ({EXTRA}) or another backbone, --net "
            "linear for the pixels themselves, or --method ser"
        )


def with_weights(
    settings: ModelSettings, shape: tuple[int, ...], num_classes: int
) -> tuple[ModelSettings, Classifier]:
    """A ViT with the weights of a file, and settings by which it is made again without the file."""
    net, given = settings.net, derive_generator(settings.learner.seed, "net")
    if net.name != "vit":
        raise ConfigError(f"--weights belongs to vit and timm:NAME, got --net {net.name}; leave it out")
    made = build_net("vit", shape, num_classes, given, **net.options, weights=net.weights)
    form: Form = made.body.form  # type: ignore[assignment]
    sizes = {key: getattr(form, key) for key in ("width", "depth", "heads", "patch")}
    if form != Form(**sizes, hidden=EXPANSION * form.width):
        raise ConfigError(
            f"{net.weights}: a kept model takes a ViT with a class token and no registers, layer scale or "
            "norms of queries; give another file"
        )
    return replace(settings, net=net.model_copy(update=sizes)), made


def backbone_moments(
    settings: ModelSettings, backbone: Backbone, chunk: Chunk
) -> tuple[list[float], list[float]]:
    """Of the images, as the backbone has them; or of its features: one deviation for all of them.

    A feature that hardly varies in the first data may vary much in later ones; divided by its own deviation
    it would be huge then, and training would diverge. With one deviation the features have about length one,
    so a learning rate means the same for every backbone.
    """
    if not settings.net.is_frozen:
        return list(backbone.mean), list(backbone.std)
    mean, std = moments(chunk.inputs)
    length = sum(value * value for value in std) ** 0.5
    return mean, [length] * len(std)


def new_model(
    settings: ModelSettings, shape: tuple[int, ...], mean: list[float], std: list[float],
    device: torch.device, num_classes: int, capacity: int, own_net: nn.Module | None = None,
    backbone: Backbone | None = None,
) -> Model:  # fmt: skip
    """A model with a given number of outputs; its initial weights are drawn from the seed in the settings."""
    seed = settings.learner.seed
    generators = {
        name: derive_generator(seed, name) for name in ("order", "views", "replayed views", "growth")
    }
    stored = (backbone.num_features,) if backbone and settings.net.is_frozen else shape
    with_draws = partial(training_view, settings, stored, mean, std)
    net = make_net(settings, stored, num_classes, own_net, backbone)
    if settings.learner.classes is None:
        net.head = GrowingHead.of(net.head)
    test_view = plain_view(settings, stored, mean, std)
    problem = Problem(num_classes, 1, with_draws(generators["replayed views"]), test_view, seed)
    method = make_method(settings, net, problem, capacity).to(device)
    samples = SampleIndex(settings.learner.store if len(stored) == 3 else "raw", stored)
    view = with_draws(generators["views"])
    held, notes = no_samples(stored), [backbone.note] if backbone and backbone.note else []
    return Model(
        settings, shape, mean, std, [], method, generators, held, samples, device, view,
        backbone=backbone, notes=notes,
    )  # fmt: skip


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
    settings: ModelSettings,
    shape: tuple[int, ...],
    num_classes: int,
    own_net: nn.Module | None,
    backbone: Backbone | None = None,
) -> Classifier:
    """The net that the settings name, or a copy of the user's net with a new head."""
    generator = derive_generator(settings.learner.seed, "net")
    if backbone is not None:
        if settings.net.is_frozen:
            return build_net("linear", shape, num_classes, generator)
        with seeded_init(generator):
            tuned = Classifier(deepcopy(backbone.body), backbone.num_features, num_classes)
        tuned.body_rate = BODY_RATE if settings.net.body_rate is None else settings.net.body_rate
        return tuned
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
    """A classifier whose features are the outputs of a copy of the user's net, without a head of its own."""
    body, num_features = body_of(own_net, shape, "net")
    return Classifier(body, num_features, num_classes)
