"""One line about what an update will do and cost, printed before it begins."""

from collections.abc import Mapping
from typing import Any

from strongreplay.models.model import Model
from strongreplay.models.settings import CLOSED_FORM
from strongreplay.training.engine import steps_in_epoch

SHORT = 10.0  # seconds; shorter estimates say nothing


def describe_cost(model: Model, num_samples: int, before: Mapping[str, Any]) -> str:
    """Samples, net, method and steps; the time, if the update `before` lets it be estimated."""
    settings, shape = model.settings, " x ".join(map(str, model.shape))
    what = f"images of {shape}" if len(model.shape) == 3 else f"samples of {shape} features"
    net = settings.net.name.rsplit("/", 1)[-1] + (
        f" of width {settings.net.width}" if settings.net.width else ""
    )
    begun = f"learning {num_samples:,} {what}: net {net}, method {settings.learner.method}"
    if settings.learner.method in CLOSED_FORM:
        return f"{begun}, one pass over frozen features"
    train = settings.train
    epochs = train.epochs_of(model.num_updates)
    steps = epochs * steps_in_epoch(num_samples, train.batch_size, bool(train.drop_last))
    return f"{begun}, {epochs} epochs of {steps // epochs:,} steps{estimate(num_samples * epochs, before)}"


def estimate(num_presented: int, before: Mapping[str, Any]) -> str:
    """By the seconds that the last update took for each sample it presented."""
    presented = before.get("chunk", {}).get("learnt", 0) * len(before.get("terms", ()))
    seconds = before.get("seconds", 0.0) / presented * num_presented if presented else 0.0
    if seconds < SHORT:
        return ""
    return (
        f", about {seconds / 60:.0f} minutes as the last update"
        if seconds > 90
        else f", about {seconds:.0f} s"
    )
