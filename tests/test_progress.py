"""Progress is lines in a pipe and a bar on a terminal; commands import it without torch and rich.progress."""

import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from strongreplay import progress
from strongreplay.progress import Bar, GridProgress, ProgressBar
from strongreplay.training.events import Position, RunInfo

SHOW_A_BAR = """
import sys, time
from strongreplay import progress
progress.PATIENCE_SECONDS = 0
with progress.Bar(beside_output=len(sys.argv) > 1) as bar:
    bar("reading [b]", 1_500, 3_000)
    time.sleep(0.3)
    bar("reading [b]", 3_000, 3_000)
"""


@dataclass
class Running:
    name: str = "digits er seed 0"
    label: str = "digits [b]ER\x1b :dog: seed 0"
    done: int = 50
    total: int = 200
    ended: tuple[str, str] | None = None
    weight: float = 1.0
    seconds: float = 2.0


def on_terminal(code: str, *words: str, **options: Any) -> str:
    """What a process writes to the terminal that its stderr is."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run(
        [sys.executable, "-c", code, *words], stderr=theirs, env=environment, check=True, **options
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # how Linux tells the end
        pass
    os.close(ours)
    return shown.decode()


def test_importing_progress_loads_neither_torch_nor_rich() -> None:
    code = "import sys, strongreplay.progress; print(sorted({'torch', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_pipe_gets_lines_without_escape_codes_whatever_the_environment_asks_for() -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    command = [sys.executable, "-c", SHOW_A_BAR]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert result.stderr == "reading [b]: 1,500 of 3,000\n"  # the next one would come 10 seconds later
    assert result.stdout == ""
    beside = subprocess.run([*command, "beside"], capture_output=True, text=True, check=True)
    assert (beside.stdout, beside.stderr) == ("", "")


def test_a_terminal_gets_a_bar_that_is_removed_at_the_end() -> None:
    for words in ((), ("beside",)):  # stdout goes elsewhere, so that a bar disturbs nothing
        shown = on_terminal(SHOW_A_BAR, *words, stdout=subprocess.DEVNULL)
        assert "reading [b]" in shown
        assert "100%" in shown
        assert "1,500 of 3,000" not in shown
        assert shown.rstrip("\r\n").endswith("\x1b[2K")  # the line is erased


def test_what_is_quick_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        bar("reading", 1, 2)
    with ProgressBar() as of_training:
        of_training.on_start(RunInfo("digits", 2, 100))
        of_training.on_step(Position(0, 0, 0, 10, steps_done=1, steps_expected=100), {})
    assert capsys.readouterr() == ("", "")


def test_the_time_left_starts_anew_with_another_activity_but_not_with_another_epoch() -> None:
    bar = ProgressBar()
    bar.draw("reading", 5, 10)
    assert bar.progress is not None
    task = bar.progress.tasks[0]
    bar.draw("learning", 40, 100)  # 40 steps were made before this process: they say nothing about its speed
    began = task.start_time
    assert (task.completed, task.total, task.speed) == (40, 100, None)
    bar.draw("learning", 50, 100, ", epoch 2")
    assert (task.description, task.completed, task.start_time) == ("learning, epoch 2", 50, began)
    bar.remove()
    assert bar.progress is None


def test_many_runs_are_lines_in_a_pipe_and_their_table_has_labels_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    job = Running()
    with GridProgress([job]) as grid:
        grid.on_tick([job])
        with grid.console.capture() as table:
            grid.console.print(grid.table([job]))
        job.ended = ("recorded", "in runs")
        grid.on_job(job)
    said = capsys.readouterr()
    assert said.err == "digits er seed 0 25 %; time left: not known yet\ndigits er seed 0: in runs in 2.0 s\n"
    assert said.out == ""
    assert r"digits [b]ER\x1b :dog: seed 0" in table.get()
    assert not grid.is_live
