"""A stream in a file of the user's own: a function of a seed that returns a Stream or two splits."""

from pathlib import Path

import pytest

from strongreplay.data.streams import StreamOptions, build_stream, describe_stream
from strongreplay.errors import ConfigError, DataError

HEAD = """
import torch
from strongreplay import Split
from strongreplay.data.streams import split_by_class

def draw(seed, count):
    labels = torch.arange(4).repeat(count)
    noise = torch.rand(len(labels), 3, generator=torch.Generator().manual_seed(seed))
    return Split(torch.nn.functional.one_hot(labels, 4).float()[:, :3] * 3 + noise, labels)
"""


def write(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(HEAD + body)
    return f"{folder / 'mine.py'}:my_stream"


def test_two_splits_are_divided_by_class(tmp_path: Path) -> None:
    name = write(tmp_path, "\ndef my_stream(seed):\n    return draw(seed, 20), draw(seed + 1, 5)\n")
    stream = build_stream(name, 1, options=StreamOptions(num_tasks=2, order=(3, 2, 1, 0)))
    assert stream.task_classes == ((0, 1), (2, 3))
    assert stream.scenario == "class-il"
    assert len(stream[0].train) == 40
    info = describe_stream(name, StreamOptions(num_tasks=2))
    assert (info.num_train, info.input_shape, info.num_classes) == ((40, 40), (3,), 4)
    before = info.hash
    write(tmp_path, "\ndef my_stream(seed):\n    return draw(seed, 30), draw(seed + 1, 5)\n")
    after = describe_stream(name, StreamOptions(num_tasks=2))
    assert after.hash != before  # edited code is another stream
    assert after.num_train == (60, 60)


def test_a_stream_is_taken_as_it_is(tmp_path: Path) -> None:
    body = """
def my_stream(seed, folder):
    assert folder.name == "data"
    return split_by_class(draw(seed, 20), draw(seed, 5), 4, 4)
"""
    name = write(tmp_path, body)
    stream = build_stream(name, 0, tmp_path / "data")
    assert len(stream) == 4
    with pytest.raises(
        ConfigError, match=r"data\.num_tasks can be set for streams that are divided by class"
    ):
        build_stream(name, 0, tmp_path / "data", options=StreamOptions(num_tasks=2))
    blurry = build_stream(name, 0, tmp_path / "data", options=StreamOptions(blurry=0.5, tasks=2))
    assert set(blurry[0].classes) == {0, 1}


def test_what_is_wrong_with_the_function_is_named(tmp_path: Path) -> None:
    name = write(tmp_path, "\ndef my_stream(seed):\n    return 1 / 0\n")
    with pytest.raises(
        DataError, match=r"my_stream failed: .*mine\.py, line \d+: ZeroDivisionError: division by zero; fix"
    ):
        build_stream(name)
    name = write(tmp_path, "\ndef my_stream(seed):\n    return [1]\n")
    with pytest.raises(DataError, match="must return a Stream, or a train and a test Split, got list"):
        build_stream(name)
    name = write(tmp_path, "\nmy_stream = 3\n")
    with pytest.raises(DataError, match="must be a function of a seed, got int"):
        build_stream(name)
    with pytest.raises(ConfigError, match="unknown stream 'his_stream'"):
        build_stream(name.replace("my_stream", "his_stream"))
