"""Streams that a user wrote: `mine.py:my_stream`, or the name of an installed package's stream.

A stream is a function of a seed, or of a seed and the data folder. It returns a Stream, or a train and a test
Split, which are then divided by class.
"""

import inspect
from pathlib import Path
from typing import Any

from strongreplay.data.tasks import Stream
from strongreplay.errors import DataError, SerError
from strongreplay.extensions import LoadedObject, explain, installed, is_path, load_object
from strongreplay.protocol import Split


def is_custom(name: str) -> bool:
    return is_path(name) or name in installed("stream")


def load_function(name: str, source_hash: str | None = None) -> LoadedObject:
    loaded = load_object(name, "stream", source_hash)
    if not callable(loaded.value):
        raise DataError(f"{name}: must be a function of a seed, got {type(loaded.value).__name__}")
    return loaded


def call(name: str, function: Any, seed: int, folder: Path) -> Stream | tuple[Split, Split]:
    """Call the function with a seed; its errors become DataErrors with its name."""
    takes_folder = len(inspect.signature(function).parameters) > 1
    try:
        made = function(seed, folder) if takes_folder else function(seed)
    except SerError:
        raise
    except Exception as error:
        raise DataError(f"{name} failed: {explain(error)}; fix the function") from error
    if isinstance(made, Stream):
        return made
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, Split) for part in made):
        return made[0], made[1]
    raise DataError(
        f"{name}: must return a Stream, or a train and a test Split, got {type(made).__name__}; "
        "see docs/streams.md"
    )
