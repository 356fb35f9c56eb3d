"""The command as a person meets it: run, skip, compare, show, mistakes, Ctrl-C."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import run_ser

from strongreplay.cli import main

SER = [sys.executable, "-m", "strongreplay"]
QUICK = ["--set", "train.epochs=1", "--threads", "1", "--device", "cpu"]


def ser(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_ser(folder, *words)


def run_quick(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ser("run", "split-digits", *QUICK, "--out", "out", *words, folder=folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    done = run_quick(folder, "--method", "sgd,ser", "--memory", "20", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    (folder / "stderr.txt").write_text(done.stderr)
    return folder


@pytest.mark.slow
def test_a_run_ends_in_a_table_records_and_a_picture(finished: Path) -> None:
    table = (finished / "stdout.txt").read_text()
    assert "mean ± 95 % interval over n seeds" in table
    assert "Class-IL" in table
    assert "forgetting" in table
    for method in ("SGD", "SER"):
        row = next(line for line in table.splitlines() if line.strip().startswith(method))
        assert row.count("±") == 4
        assert row.split()[-1] == "2"
    assert "picture: out/split-digits.png" in table
    assert (finished / "out" / "split-digits.png").read_bytes().startswith(b"\x89PNG")
    records = sorted((finished / "out").rglob("seed-*.json"))
    assert len(records) == 4
    assert all(json.loads(path.read_text())["format"] == 1 for path in records)
    assert "no memory in sgd; --memory does not apply there" in (finished / "stderr.txt").read_text()


@pytest.mark.slow
def test_a_later_run_does_not_narrow_the_picture(finished: Path) -> None:
    picture = finished / "out" / "split-digits.png"
    before = picture.read_bytes()
    assert run_quick(finished, "--method", "sgd", "--seeds", "1").returncode == 0
    assert picture.read_bytes() == before


@pytest.mark.slow
def test_compare_names_its_spread_and_tests_one_method_against_the_others(finished: Path) -> None:
    by_deviation = ser("compare", "out", "--spread", "sd", "--picture", "sd.png", folder=finished).stdout
    assert "mean ± 95 % interval over n seeds" in by_deviation
    assert "; sd: sample deviation" in by_deviation
    assert "accuracy sd" in by_deviation
    paired = ser("compare", "out", "--against", "ser", folder=finished).stdout
    assert "paired t-test, p after Holm" in paired
    titles = [line for line in paired.splitlines() if line.startswith("split-digits")]
    assert titles == [f"split-digits, memory 20, {scenario}, SER" for scenario in ("Class-IL", "Task-IL")]
    rows = [line for line in paired.splitlines() if line.startswith("SGD")]
    assert [line.endswith("not decided") for line in rows] == [True, True]
    unknown = ser("compare", "out", "--against", "sre", folder=finished)
    assert (unknown.returncode, "unknown method 'sre'; did you mean 'ser'" in unknown.stderr) == (2, True)


@pytest.mark.slow
def test_what_is_recorded_is_skipped_and_said_so(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "out").rglob("seed-*.json")}
    again = run_quick(finished, "--method", "sgd,ser", "--memory", "20", "--seeds", "2")
    assert again.returncode == 0
    assert again.stderr.count("recorded already, skipped") == 4
    assert before == {path: path.stat().st_mtime_ns for path in (finished / "out").rglob("seed-*.json")}
    assert "SER" in again.stdout


@pytest.mark.slow
def test_compare_and_show(finished: Path) -> None:
    compared = ser("compare", "out", "--picture", "mine.png", folder=finished)
    assert compared.returncode == 0, compared.stderr
    assert "picture: mine.png" in compared.stdout
    assert (finished / "mine.png").exists()
    record = next((finished / "out" / "split-digits").glob("ser-m20-*/seed-0.json"))
    shown = ser("show", str(record), folder=finished)
    assert shown.returncode == 0, shown.stderr
    for words in ("Class-IL", "Task-IL", "average accuracy", "method.alpha=", "torch", "peak", "recipe:"):
        assert words in shown.stdout, words


@pytest.mark.slow
def test_a_damaged_record_is_named_and_passed_over_and_run_again(finished: Path, tmp_path: Path) -> None:
    done = run_quick(tmp_path, "--method", "sgd")
    assert done.returncode == 0
    record = next((tmp_path / "out").rglob("seed-0.json"))
    record.write_text(record.read_text()[:100])
    (tmp_path / "out" / "foreign.json").write_text("{}")
    compared = ser("compare", "out", str(finished / "out"), folder=tmp_path)
    assert compared.returncode == 0
    assert compared.stderr.count("passed over") == 2
    again = run_quick(tmp_path, "--method", "sgd")
    assert again.returncode == 0
    assert "running again" in again.stderr
    json.loads(record.read_text())


@pytest.mark.parametrize(
    ("words", "code", "messages"),
    [
        (["run", "split-digit"], 2, ["unknown stream 'split-digit'; did you mean 'split-digits'?"]),
        (["run", "split-digits", "-m", "sre"], 2, ["unknown method 'sre'; did you mean 'ser'?"]),
        (["run", "split-digits", "-m", ","], 2, ["--method must name at least one method"]),
        (
            ["run", "split-digits", "--set", "method.alhpa=1", "--set", "train.lr=-1"],
            2,
            [
                "unknown setting 'method.alhpa'; did you mean 'method.alpha'?",
                "train.lr must be > 0.0, got '-1'",
            ],
        ),
        (["run", "split-digits", "--memory", "0"], 2, ["method.memory_size must be >= 1, got 0"]),
        (["run", "split-digits", "--set", "oops"], 2, ["--set takes KEY=VALUE"]),
        (["run", "split-digits", "--seeds", "none"], 2, ["--seeds must be a count >= 1"]),
        (["run", "split-digits", "--seeds", "0"], 2, ["--seeds must be a count >= 1"]),
        (["run", "split-digits", "--device", "abacus"], 2, ["device 'abacus' is not available"]),
        (["run", "p-mnist", "--data", "nowhere"], 1, ["mnist not found in nowhere", "ser data get mnist"]),
        (["compare", "nowhere"], 1, ["nowhere: no such file or folder"]),
        (["compare", "."], 1, ["no records in ."]),
        (["show", "none.json"], 1, ["none.json: no such file or folder"]),
        (["walk"], 2, ["No such command"]),
    ],
)
def test_mistakes_get_a_clear_message_and_change_nothing(
    words: list[str],
    code: int,
    messages: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ser", *words])
    with pytest.raises(SystemExit) as caught:  # anything else would be a traceback
        main()
    assert caught.value.code == code
    said = " ".join(capsys.readouterr().err.split())
    for message in messages:
        assert message in said, said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_diverging_run_says_where_and_keeps_what_it_had(tmp_path: Path) -> None:
    result = run_quick(tmp_path, "--method", "sgd,ser", "--set", "train.lr=60", "--memory", "20")
    assert result.returncode == 1
    said = " ".join(result.stderr.split())
    assert "stopped at task" in said
    assert "the loss term" in said
    kept = list((tmp_path / "out").rglob("*.stopped"))
    assert len(kept) == 1
    assert json.loads(kept[0].read_text())["config"]["train"]["lr"] == 60


@pytest.mark.slow
def test_a_small_memory_is_pointed_out(tmp_path: Path) -> None:
    result = run_quick(tmp_path, "--memory", "5")
    assert result.returncode == 0
    assert "a memory of 5 samples is smaller than the 10 classes" in result.stderr


@pytest.mark.slow
def test_seeds_may_be_named(tmp_path: Path) -> None:
    assert run_quick(tmp_path, "--method", "sgd", "--seeds", "3,7").returncode == 0
    assert sorted(path.stem for path in (tmp_path / "out").rglob("*.json")) == ["seed-3", "seed-7"]


@pytest.mark.slow
def test_ctrl_c_stops_with_a_message_and_keeps_finished_seeds(tmp_path: Path) -> None:
    words = ["run", "split-digits", "--method", "ser", "--memory", "20", "--seeds", "500", "--threads", "1"]
    words += ["--set", "train.epochs=1", "--out", "out"]
    process = subprocess.Popen(
        [*SER, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("seed-1.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    said = " ".join(errors.split())
    assert "runs are recorded in out. Resume with the same command, or with: ser resume out" in said
    assert "Traceback" not in errors
    for path in tmp_path.rglob("*.json"):
        json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["methods", "streams", "nets", "recipes"])
def test_lists_have_one_line_each(what: str) -> None:
    from strongreplay.data.streams import STREAMS
    from strongreplay.methods import METHODS
    from strongreplay.nets import NETS
    from strongreplay.runs.recipes import all_recipes

    lines = ser("list", what).stdout.splitlines()
    expected = {
        "methods": len(METHODS),
        "streams": len(STREAMS),
        "nets": len(NETS),
        "recipes": len(all_recipes()),
    }
    assert len(lines) == 1 + expected[what]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [(["--version"], 0), (["nonsense"], 2), (["show", "nowhere"], 1), (["list", "nets"], 0)],
)
def test_the_process_leaves_with_its_code_and_after_what_was_registered(words: list[str], code: int) -> None:
    program = (
        "import atexit, sys\nfrom strongreplay import __main__ as process\n"
        "old = process.main\n"
        "process.main = lambda: (atexit.register(print, 'last', file=sys.stderr), old())\n"
        "process.ser()"
    )
    result = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert result.returncode == code, result.stderr
    assert result.stderr.endswith("last\n")
    assert (result.stdout != "") == (code == 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [["--version"], ["list", "methods"]])
def test_an_output_that_cannot_be_written_is_an_error_of_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run([*SER, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert result.stderr == "error: [Errno 28] No space left on device\n"


@pytest.mark.slow
def test_help_and_version_without_torch() -> None:
    """Torch takes seconds to import; help must not wait for it."""
    code = "import sys; sys.argv = ['ser', '--help']; from strongreplay.cli import main\n"
    code += "try: main()\nexcept SystemExit: assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for command in ("run", "compare", "show", "list", "data"):
        assert command in result.stdout
    assert ser("--version").stdout.startswith("ser 0.")
    for option in ("--method", "--memory", "--seeds", "--set", "--device", "--threads", "--out", "--data"):
        assert option in ser("run", "--help").stdout


def test_help_starts_fast() -> None:
    """In processor time, which a busy machine does not stretch as it does the clock's."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ser("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.5
