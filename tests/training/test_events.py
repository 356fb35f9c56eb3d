"""Listeners: what they hear of real runs and updates, that they change nothing, and that they may fail."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.compare import assert_same
from torch import Tensor

from strongreplay import Learner, build_stream, resolve
from strongreplay.learner import Refused
from strongreplay.protocol import Terms
from strongreplay.runs.config import RunConfig
from strongreplay.runs.run import run
from strongreplay.training.events import Listener, Listeners, Outcome, Position, RunInfo, Scores
from strongreplay.training.trainer import Interrupted


class Diary(Listener):
    """Writes down everything."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_start(self, run: RunInfo) -> None:
        self.events.append(("start", run))

    def on_phase(self, task: int, phase: str) -> None:
        self.events.append(("phase", task, phase))

    def on_step(self, position: Position, terms: Terms) -> None:
        assert all(isinstance(term, Tensor) and not term.requires_grad for term in terms.values())
        self.events.append(("step", position, {name: term.item() for name, term in terms.items()}))
        terms.clear()  # what a listener does to its copy concerns nobody

    def on_epoch(self, position: Position, terms: dict[str, float], rate: float, seconds: float) -> None:
        self.events.append(("epoch", position, terms, rate, seconds))

    def on_task(self, index: int, scores: Scores) -> None:
        self.events.append(("task", index, scores))

    def on_checkpoint(self, path: Path) -> None:
        self.events.append(("checkpoint", path))

    def on_end(self, outcome: Outcome) -> None:
        self.events.append(("end", outcome))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == kind]


def config(**settings: Any) -> RunConfig:
    small = {"data.tasks": 2, "train.epochs": 2, "train.batch_size": 64, "net.width": 16}
    return resolve("split-digits", "lwf", settings=small | settings)


def test_a_listener_hears_of_all_of_a_run_and_changes_nothing(tmp_path: Path) -> None:
    first, second = Diary(), Diary()
    heard = run(config(), listeners=[first, second], out=tmp_path, checkpoint_every="3")
    assert heard.results == run(config()).results
    assert len(first.events) == len(second.events)
    kinds = [event[0] for event in first.events]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert first.of("end") == [(Outcome("finished"),)]
    assert first.of("phase") == [(0, "main"), (1, "warm-up"), (1, "main")]
    assert [index for index, _ in first.of("task")] == [0, 1]
    assert first.of("task")[1][1]["class-il"] == heard.matrix("class-il")[1]
    steps = first.of("step")
    assert [position.steps_done for position, _ in steps] == list(range(1, len(steps) + 1))
    assert steps[-1][0].steps_expected == pytest.approx(len(steps), abs=4)
    assert all(path.parent.parent.parent.parent == tmp_path for (path,) in first.of("checkpoint"))
    epochs = [event for event in first.of("epoch") if event[0].phase == "main"]
    assert [terms for _, terms, _, _ in epochs] == [
        terms for task in heard.results["terms"] for terms in task
    ]
    assert all(rate == config().train.lr and seconds > 0 for _, _, rate, seconds in epochs)
    of_first = [terms["current"] for position, terms in steps if (position.task, position.epoch) == (0, 0)]
    assert epochs[0][1]["current"] == pytest.approx(sum(of_first) / len(of_first))


def test_a_listener_may_stop_a_run_and_hears_that_it_stopped(tmp_path: Path) -> None:
    class Stops(Diary):
        def wants_stop(self) -> bool:
            return len(self.of("step")) == 4

    stops, goes_on = Stops(), Diary()
    with pytest.raises(Interrupted, match="stopped after step 4"):
        run(config(), listeners=[stops], out=tmp_path)
    assert stops.of("end")[0][0].kind == "stopped"
    resumed = run(config(), listeners=[goes_on], out=tmp_path, resume=True)
    assert goes_on.of("start")[0][0].steps_done == 4
    assert resumed.results == run(config()).results


def test_a_listener_that_fails_is_left_out_and_the_run_goes_on() -> None:
    class Breaks(Diary):
        def on_step(self, position: Position, terms: Terms) -> None:
            if position.steps_done == 3:
                raise OSError("the disk is full")

    class Messages(Diary):
        def on_message(self, text: str) -> None:
            self.events.append(("message", text))

    breaks, messages = Breaks(), Messages()
    with pytest.warns(RuntimeWarning, match=r"Breaks.on_step raised OSError: the disk is full"):
        record = run(config(), listeners=[breaks, messages])
    assert record.results == run(config()).results
    assert "the disk is full" in messages.of("message")[0][0]
    assert messages.of("end") == [(Outcome("finished"),)]
    assert breaks.of("end") == []


def test_a_failed_run_is_reported() -> None:
    diary = Diary()
    with pytest.raises(Exception, match="loss term"):
        run(config(**{"train.lr": 1e30}), listeners=[diary])
    assert diary.of("end")[0][0].kind == "failed"
    assert "loss term" in diary.of("end")[0][0].text


def test_only_what_is_defined_is_called() -> None:
    class Quiet(Listener):
        pass

    several = Listeners([Quiet(), Diary()])
    several.on_task(0, {"class-il": [1.0]})
    assert several.wants_stop() is False
    assert several._defined("wants_stop") == []
    assert len(several._defined("on_task")) == 1


# A learner


def data_of(index: int) -> tuple[Tensor, Tensor]:
    train = build_stream("split-digits", seed=0)[index].train
    return train.inputs, train.labels


QUICK: dict[str, Any] = {"net": "mlp", "epochs": 2, "batch_size": 32, "memory": 60, "device": "cpu"}


def test_a_learner_has_listeners_and_learns_the_same_with_them() -> None:
    diary = Diary()
    quiet, heard = Learner(**QUICK), Learner(**QUICK, listeners=[diary])
    for index in (0, 1):
        quiet.learn(*data_of(index))
        heard.learn(*data_of(index))
    assert_same(quiet.model_.method.state_dict(), heard.model_.method.state_dict())
    assert [event[0] for event in diary.events].count("start") == 2
    phases = [event[0].phase for event in diary.of("epoch")]
    assert [phases.count(name) for name in ("main", "correction")] == [4, 6]
    assert diary.of("end") == [(Outcome("finished"),)] * 2


def test_a_learner_reports_accuracy_after_each_update_and_a_refusal() -> None:
    diary = Diary()
    learner = Learner(**QUICK, listeners=[diary])
    learner.learn(*data_of(0), guard=data_of(0))
    forgetful = {"memory": 2, "method": "sgd", "settings": {"learner.correction": None}}
    learner = Learner(**QUICK | forgetful, listeners=[diary])
    learner.learn(*data_of(0))
    with pytest.raises(Refused, match="the learner is unchanged"):
        learner.learn(*data_of(1), guard=data_of(0), max_drop=5)
    (first, second, third), ends = diary.of("task"), [outcome for (outcome,) in diary.of("end")]
    assert (first[0], second[0], third[0]) == (0, 0, 1)
    assert set(first[1]) == {"held-out", "guard"}
    assert first[1]["guard"][0] > 90
    assert set(second[1]) == {"held-out"}
    images, labels = data_of(0)
    report = Learner(**QUICK).learn(images, labels)
    right = sum(right for right, _ in report.fresh.values())
    assert report.accuracy == {"held-out": 100 * right / sum(count for _, count in report.fresh.values())}
    assert third[1]["guard"][0] is None
    assert third[1]["guard"][1] < 50
    assert [outcome.kind for outcome in ends] == ["finished", "finished", "refused"]
    assert re.match(r"class \d fell from [\d.]+ to [\d.]+ % on \d+ guard samples", ends[-1].text)


def test_a_learner_reports_the_reading_of_a_folder_and_survives_a_failing_listener(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number % 2}").mkdir(exist_ok=True)
        Image.new("L", (8, 8), 20 * number).save(tmp_path / f"{number % 2}" / f"{number}.png")
    (tmp_path / "0" / "broken.png").write_bytes(b"no image")
    loaded = list[tuple[str, int, int]]()

    class Watches(Listener):
        def on_loading(self, what: str, done: int, total: int) -> None:
            loaded.append((what, done, total))

    class Breaks(Listener):
        def on_message(self, text: str) -> None:
            raise OSError("the disk is full")

    class Epochs:  # a listener by its methods, without the base class
        epochs = 0

        def on_epoch(self, position: Position, terms: dict[str, float], rate: float, seconds: float) -> None:
            self.epochs += 1

    epochs = Epochs()
    given = QUICK | {"listeners": [Watches(), Breaks(), epochs]}
    with pytest.warns(RuntimeWarning, match="Breaks.on_message raised OSError: the disk is full"):
        Learner(**given).learn(tmp_path, skip_bad=True)
    assert loaded[-1][1:] == (12, 12)
    assert epochs.epochs > 0

    class Stops(Listener):
        def wants_stop(self) -> bool:
            return True

    stopped = Learner(**QUICK, listeners=[Stops()])
    with pytest.raises(Interrupted, match="stopped while reading"):
        stopped.learn(tmp_path, skip_bad=True)
    assert not hasattr(stopped, "model_")


def test_a_learner_goes_on_with_an_update_that_was_stopped(tmp_path: Path) -> None:
    class Stops(Diary):
        def wants_stop(self) -> bool:
            return len(self.of("step")) == 5

    whole = Learner(**QUICK)
    whole.learn(*data_of(0))
    whole.learn(*data_of(1))
    stopped = Learner(**QUICK, checkpoint=tmp_path / "state")
    stopped.learn(*data_of(0))
    assert not (tmp_path / "state").exists()
    stopped.set_params(listeners=[Stops()])
    with pytest.raises(Interrupted, match=r"after step 5 of \d+; its state is kept in"):
        stopped.learn(*data_of(1))
    assert list(stopped.classes_) == [0, 1]
    with pytest.raises(Exception, match="an update with other data or settings was stopped here"):
        stopped.set_params(listeners=[]).learn(*data_of(2))
    diary = Diary()
    stopped.set_params(listeners=[diary]).learn(*data_of(1))
    assert diary.of("start")[0][0].steps_done == 5
    assert diary.of("step")[0][0].steps_done == 6
    assert_same(whole.model_.method.state_dict(), stopped.model_.method.state_dict())
    assert not (tmp_path / "state").exists()


def test_a_verbose_learner_says_nothing_to_a_log_before_it_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Learner(**QUICK, verbose=True).learn(*data_of(0))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("strongreplay.progress.LINE_SECONDS", 0)
    Learner(**QUICK, verbose=True).learn(*data_of(0))
    said = capsys.readouterr()
    assert said.out == ""
    assert "learning, epoch 2: " in said.err
    assert "\x1b" not in said.err


def test_a_learner_with_listeners_is_cloned_and_pickled() -> None:
    import pickle

    from sklearn.base import clone  # type: ignore[import-untyped]

    learner = Learner(**QUICK, verbose=False)
    learner.learn(*data_of(0))
    copy = pickle.loads(pickle.dumps(learner))
    inputs = data_of(0)[0][:20]
    assert np.array_equal(copy.predict(inputs), learner.predict(inputs))
    assert clone(Learner(**QUICK, listeners=[Diary()])).epochs == 2


# Numbers that are not finite


def test_a_learner_refuses_what_is_not_finite_and_stays_as_it_was() -> None:
    learner = Learner(**QUICK)
    learner.learn(*data_of(0))
    before = {name: value.clone() for name, value in learner.model_.method.net.state_dict().items()}
    with pytest.raises(Exception, match=r"not finite|is (nan|inf)"):
        learner.set_params(lr=1e38).learn(*data_of(1))
    assert_same(before, dict(learner.model_.method.net.state_dict()))
    with pytest.raises(Exception, match=r"not finite|is (nan|inf)"):
        Learner(**QUICK | {"lr": 1e38, "epochs": 1}).learn(*data_of(0))


def test_a_first_update_that_diverges_at_its_only_step_is_refused() -> None:
    """The loss of that step is finite, and so are the weights after it: only the answers show it."""
    images, labels = data_of(0)
    steps = Diary()
    settings = {"learner.correction": None}  # it would find the same a step later
    given = QUICK | {"lr": 3e37, "epochs": 1, "batch_size": 1000, "settings": settings}
    learner = Learner(**given, val=0, listeners=[steps])
    with pytest.raises(Exception, match="answers to training samples are not finite"):
        learner.learn(images, labels)
    assert len(steps.of("step")) == 1
    assert all(np.isfinite(list(terms.values())).all() for _, terms in steps.of("step"))
    assert not hasattr(learner, "model_")
