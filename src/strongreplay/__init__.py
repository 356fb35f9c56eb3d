"""strongreplay: continual learning with Strong Experience Replay.

Names are loaded when first used, so that importing the package, or asking the command line for help, stays
quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from strongreplay.data.streams import (
        STREAMS,
        Stream,
        build_stream,
        permutation_maps,
        remap_pixels,
        rotation_maps,
        split_by_class,
    )
    from strongreplay.errors import ConfigError, DataError, RunError, SerError
    from strongreplay.learner import Learner
    from strongreplay.memory import Memory
    from strongreplay.methods import METHODS, Method, MethodConfig, build_method
    from strongreplay.methods.base import Phase, descend
    from strongreplay.methods.der import DER
    from strongreplay.methods.derpp import DERPP
    from strongreplay.methods.er import ER
    from strongreplay.methods.ser import SER
    from strongreplay.methods.sgd import SGD
    from strongreplay.nets import NETS, Classifier, build_net
    from strongreplay.protocol import Batch, Problem, Split, Task, Terms, derive_generator
    from strongreplay.runs.config import RunConfig, resolve
    from strongreplay.runs.run import run
    from strongreplay.storage.records import RunRecord, read_record, write_record
    from strongreplay.training.engine import evaluate, train_task
    from strongreplay.training.events import Listener

_HOMES = {
    "runs.config": ("RunConfig", "resolve"),
    "runs.run": ("run",),
    "data.streams": (
        "STREAMS", "Stream", "build_stream", "permutation_maps", "remap_pixels", "rotation_maps",
        "split_by_class",
    ),
    "training.engine": ("evaluate", "train_task"),
    "training.events": ("Listener",),
    "errors": ("ConfigError", "DataError", "RunError", "SerError"),
    "learner": ("Learner",),
    "memory": ("Memory",),
    "methods": ("METHODS", "Method", "MethodConfig", "build_method"),
    "methods.base": ("Phase", "descend"),
    "methods.der": ("DER",), "methods.derpp": ("DERPP",), "methods.er": ("ER",), "methods.ser": ("SER",),
    "methods.sgd": ("SGD",),
    "nets": ("NETS", "Classifier", "build_net"),
    "storage.records": ("RunRecord", "read_record", "write_record"),
    "protocol": ("Batch", "Problem", "Split", "Task", "Terms", "derive_generator"),
}  # fmt: skip

__all__ = [
    "DER", "DERPP", "ER", "METHODS", "NETS", "SER", "SGD", "STREAMS", "Batch", "Classifier", "ConfigError",
    "DataError", "Learner", "Listener", "Memory", "Method", "MethodConfig", "Phase", "Problem", "RunConfig",
    "RunError", "RunRecord", "SerError", "Split", "Stream", "Task", "Terms", "build_method", "build_net",
    "build_stream", "derive_generator", "descend", "evaluate", "permutation_maps", "read_record",
    "remap_pixels", "resolve", "rotation_maps", "run", "split_by_class", "train_task", "write_record",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
