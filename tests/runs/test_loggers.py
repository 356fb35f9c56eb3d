"""Loggers: what they wrote is read back by each program's own reader; none of them can end a run."""

import csv
import io
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.grids import Quiet

from strongreplay.errors import ConfigError
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.grid import Grid, Job, RunOptions, make_run
from strongreplay.runs.loggers import LOGGERS, make_loggers, parse_loggers, prepare_loggers
from strongreplay.storage import files
from strongreplay.storage.records import RunRecord, read_folder, record_path
from strongreplay.training.events import Listener, Position
from strongreplay.training.trainer import Interrupted

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, by MLflow


def config(seed: int = 0) -> RunConfig:
    small = {"data.tasks": 2, "train.epochs": 2, "train.batch_size": 64, "net.width": 16}
    return resolve("split-digits", "lwf", None, seed, small)  # its warm-up is a phase of its own


class Diary(Listener):
    """What the run itself tells."""

    def __init__(self) -> None:
        self.steps, self.messages = list[tuple[str, int, float]](), list[str]()

    def on_step(self, position: Position, terms: Any) -> None:
        place = "loss of step" if position.phase == "main" else f"loss of step, {position.phase}"
        self.steps += [(f"{place}/{name}", position.steps_done, term.item()) for name, term in terms.items()]

    def on_message(self, text: str) -> None:
        self.messages.append(text)


class Logged:
    """One run with all loggers."""

    def __init__(self, out: Path) -> None:
        self.config, self.diary, self.out = config(), Diary(), out
        prepare_loggers(LOGGERS, out)
        options = RunOptions(out, out, "cpu", loggers=tuple(LOGGERS))
        self.record: RunRecord = make_run(self.config, options, [self.diary])
        self.name = record_path(Path(), self.config.to_dict()).with_suffix("").as_posix()


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    return Logged(tmp_path_factory.mktemp("logged"))


def expect_scalars(found: dict[tuple[str, int], float], logged: Logged) -> None:
    """All steps to single precision, the means of the epochs, the accuracies and the final metrics."""
    for name, step, value in logged.diary.steps:
        assert found[name, step] == pytest.approx(value, rel=1e-6)
    last = max(step for _, step, _ in logged.diary.steps)
    for name, mean in logged.record.results["terms"][-1][-1].items():
        assert found[f"loss/{name}", last] == pytest.approx(mean, rel=1e-6)
    for task, accuracy in enumerate(logged.record.matrix("class-il")[-1], 1):
        assert found[f"class-il/task {task}", last] == pytest.approx(accuracy)
    assert found["epoch/rate", last] == pytest.approx(logged.config.train.lr)


def read_csv(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_text())))


def csv_scalars(folder: Path) -> dict[tuple[str, int], float]:
    return {(name, int(step)): float(value) for name, step, value in read_csv(folder / "scalars.csv")[1:]}


@pytest.mark.slow
def test_tables_are_read_back(logged: Logged) -> None:
    folder = logged.out / "csv.logs" / logged.name
    expect_scalars(csv_scalars(folder), logged)
    matrix = [
        [float(text) if text else None for text in row] for row in read_csv(folder / "class-il.csv")[1:]
    ]
    assert matrix == logged.record.matrix("class-il")
    settings = dict(read_csv(folder / "settings.csv")[1:])
    assert (settings["run"], settings["outcome"]) == (logged.name, "finished")
    assert float(settings["train.lr"]) == logged.config.train.lr
    assert float(settings["class-il/average_accuracy"]) == logged.record.score("class-il", "average_accuracy")


@pytest.mark.slow
def test_tensorboard_reads_the_event_file(logged: Logged) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    reader = EventAccumulator(str(logged.out / "tensorboard.logs" / logged.name), {"scalars": 0})
    reader.Reload()
    found = {
        (tag, event.step): event.value for tag in reader.Tags()["scalars"] for event in reader.Scalars(tag)
    }
    expect_scalars(found, logged)
    best = [value for (tag, _), value in found.items() if tag == "final/class-il/average_accuracy"]
    assert best == [pytest.approx(logged.record.score("class-il", "average_accuracy"))]
    (image,) = reader.Images("matrix/class-il")
    assert Image.open(io.BytesIO(image.encoded_image_string)).size == (400, 340)
    held = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = HParamsPluginData.FromString(held).session_start_info.hparams
    assert settings["train.lr"].string_value == str(logged.config.train.lr)


@pytest.mark.slow
def test_mlflow_reads_its_database(logged: Logged) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{logged.out}/mlflow.logs/mlflow.db")
    experiment = client.get_experiment_by_name("split-digits")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (logged.name, "FINISHED")
    assert run.data.params["train.lr"] == str(logged.config.train.lr)
    found = {
        (name, metric.step): metric.value
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    }
    plain = {(name.replace(",", ""), step): value for name, step, value in logged.diary.steps}
    assert {key: found[key] for key in plain} == pytest.approx(plain)
    accuracy = run.data.metrics["final/class-il/average_accuracy"]
    assert accuracy == logged.record.score("class-il", "average_accuracy")
    assert [one.path for one in client.list_artifacts(run.info.run_id, "matrix")] == [
        "matrix/class-il.png",
        "matrix/task-il.png",
    ]


def entries_of(data: bytes) -> Iterator[bytes]:
    """The entries of a log in LevelDB's format: blocks of 32 KiB; an entry may be divided into parts."""
    place, whole = 7, b""  # after the head of the file
    while place + 7 <= len(data):
        if 2**15 - place % 2**15 < 7:  # the rest of a block is empty
            place += 2**15 - place % 2**15
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole entry, or the last part of one
            yield whole
            whole = b""


@pytest.mark.slow
def test_weights_and_biases_reads_its_offline_file(logged: Logged) -> None:
    from wandb.proto import wandb_internal_pb2

    (file,) = (logged.out / "wandb.logs").glob("wandb/offline-run-*/run-*.wandb")
    found, names, summary, settings = dict[tuple[str, int], float](), [], dict[str, Any](), dict[str, Any]()
    reader: Any = vars(wandb_internal_pb2)["Record"]  # it has no types
    for data in entries_of(file.read_bytes()):
        record = reader.FromString(data)
        if record.HasField("history"):
            values = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            step = values.pop("_step", record.history.step.num)
            found |= {(name, step): value for name, value in values.items() if isinstance(value, float | int)}
        elif record.HasField("run"):
            names.append(record.run.display_name)
            settings |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
        elif record.HasField("summary"):
            summary |= {
                ".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update
            }
    assert names[0] == logged.name
    assert float(settings["train.lr"]) == logged.config.train.lr
    expect_scalars(found, logged)
    accuracy = logged.record.score("class-il", "average_accuracy")
    assert summary["final/class-il/average_accuracy"] == accuracy
    assert len(list(file.parent.rglob("*.png"))) == 2


@pytest.mark.slow
def test_records_are_found_beside_logs(logged: Logged) -> None:
    records, problems = read_folder([logged.out])
    assert ([record.config for record in records], problems) == ([logged.config.to_dict()], [])


@pytest.mark.slow
def test_a_run_that_was_stopped_and_resumed_logs_every_step_once(logged: Logged, tmp_path: Path) -> None:
    class Stops(Diary):
        def wants_stop(self) -> bool:
            return bool(self.steps) and self.steps[-1][1] == 10

    options = RunOptions(tmp_path, tmp_path, "cpu", checkpoint_every="4", loggers=("csv", "tensorboard"))
    with pytest.raises(Interrupted):
        make_run(logged.config, options, [Stops()])
    folder = tmp_path / "csv.logs" / logged.name
    assert dict(read_csv(folder / "settings.csv")[1:])["outcome"] == "stopped"
    files.append(folder / "scalars.csv", b"loss of step/current,11,0.5\r\n")  # as after a kill
    make_run(logged.config, options)
    whole = read_csv(logged.out / "csv.logs" / logged.name / "scalars.csv")
    resumed = read_csv(folder / "scalars.csv")
    without_times = [[row for row in rows if "seconds" not in row[0]] for rows in (whole, resumed)]
    assert sorted(without_times[0]) == sorted(without_times[1])

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(tmp_path / "tensorboard.logs" / logged.name), {"scalars": 0})
    reader.Reload()
    steps = [event.step for event in reader.Scalars("loss of step/current")]
    assert steps == [step for name, step, _ in logged.diary.steps if name == "loss of step/current"]


@pytest.mark.slow
def test_a_full_disk_ends_a_logger_and_not_the_run(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files, "append", full)
    diary, options = Diary(), RunOptions(tmp_path, tmp_path, "cpu", loggers=("csv", "tensorboard"))
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        record = make_run(logged.config, options, [diary])
    assert record.results == logged.record.results
    told = [text for text in diary.messages if "No space left on device" in text]
    assert [text.partition(".")[0] for text in told] == ["TensorBoardLogger", "CSVLogger"]
    assert "it is left out now" in told[0]


def test_a_missing_package_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(LOGGERS, "wandb", replace(LOGGERS["wandb"], needs="no_such_package"))
    with pytest.raises(ConfigError, match=r"--log wandb needs .* pip install 'strongreplay\[loggers\]'"):
        parse_loggers(["csv,wandb"])
    made, problems = make_loggers(["csv", "wandb"], config(), tmp_path)  # in a worker on another machine
    assert (len(made), len(problems)) == (1, 1)
    assert "--log wandb is left out" in problems[0]
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        parse_loggers(["tensorbord"])


@pytest.mark.slow
def test_a_logger_of_ones_own_works_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from strongreplay import Listener\n\n\n"
        "class Epochs(Listener):\n"
        "    def __init__(self, config, out):\n"
        "        self.file = out / f'epochs-{config.seed}.txt'\n\n"
        "    def on_epoch(self, position, terms, rate, seconds):\n"
        "        with self.file.open('a') as file:\n"
        "            file.write(f'{position.task} {position.epoch}\\n')\n"
    )
    names = parse_loggers(["mine.py:Epochs", "csv"])
    options = RunOptions(tmp_path / "out", tmp_path, "cpu", loggers=names)
    grid = Grid([Job.of(config(seed=7))], options, num_jobs=2, threads=1)

    assert [job.ended and job.ended[0] for job in grid.go(Quiet())] == ["recorded"]
    assert Path("out/epochs-7.txt").read_text().split("\n")[-3:-1] == ["1 0", "1 1"]
    assert len(list(Path("out/csv.logs").rglob("scalars.csv"))) == 1
    Path("mine.py").write_text("class Epochs: ...\n")
    with pytest.raises(ConfigError, match="must be a subclass of strongreplay"):
        parse_loggers(["mine.py:Epochs"])
