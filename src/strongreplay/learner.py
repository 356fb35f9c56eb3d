"""Learner: a classifier that is kept up to date, with the interface of scikit-learn.

`learn` accepts folders, arrays, tensors and datasets. The net, the memory and the labels are a `Model`; an
update works on a copy, so a failed or refused update changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn

from strongreplay.data.image_files import is_labelled, read_files
from strongreplay.data.labels import normalise
from strongreplay.data.layouts import choose_test_data, split_data
from strongreplay.data.read_options import STRICT, ReadOptions
from strongreplay.data.user_data import Chunk, Label, read_chunk, read_inputs
from strongreplay.errors import DataError, RunError
from strongreplay.models.budget import DEFAULT_MEMORY
from strongreplay.models.build import first_model
from strongreplay.models.choice import NetChoice
from strongreplay.models.deployment import export_model
from strongreplay.models.export import Exported
from strongreplay.models.gate import LEVEL
from strongreplay.models.inspect import (
    Evaluation,
    HistoryEntry,
    ModelStatus,
    VersionDiff,
    collect_answers,
    diff_versions,
    read_history,
    read_status,
)
from strongreplay.models.labels import settle_case
from strongreplay.models.learn import describe
from strongreplay.models.load import load_model
from strongreplay.models.model import Model
from strongreplay.models.parts import model_of, parts_of
from strongreplay.models.settings import CLOSED_FORM, OWN, ModelSettings, check_used, make_settings
from strongreplay.models.store import Store, Version
from strongreplay.models.update import Report, Update, update_checkpoints
from strongreplay.progress import ProgressBar
from strongreplay.storage import files
from strongreplay.storage.lock import locked
from strongreplay.storage.records import fingerprint, flatten
from strongreplay.training.devices import find_device
from strongreplay.training.events import Listener, Listeners
from strongreplay.training.trainer import report_loading

ARGUMENTS = {
    "method": "learner.method",
    "memory": "learner.memory",
    "val": "learner.val",
    "augment": "learner.augment",
    "normalise": "learner.normalise",
    "store": "learner.store",
    "seed": "learner.seed",
    "epochs": "train.epochs",
    "lr": "train.lr",
    "batch_size": "train.batch_size",
}  # of the constructor -> settings


class Refused(RunError):
    """An update was refused: an old class lost more than `max_drop` points. The learner is unchanged."""

    def __init__(self, report: Report) -> None:
        super().__init__(
            f"{report.verdict.reason()}; the learner is unchanged. "
            "Learn with a larger memory, or with max_drop=None"
        )
        self.report = report


class Learner(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new data without forgetting old data.

    `net` is a name, or a module whose outputs are used as features. With a `checkpoint` folder, a checkpoint
    is written there every minute: the same call in a new process resumes a killed update, and the folder is
    removed at the end. `listeners` receive events (see `strongreplay.training.events`); `verbose` shows a
    progress bar. `case` says whether labels that differ in capitals only are one class ("merge") or two
    ("keep"); without it they are an error.
    """

    def __init__(
        self,
        net: str | nn.Module = "auto",
        method: str = "auto",
        memory: int | str = DEFAULT_MEMORY,
        *,
        epochs: int = 20,
        lr: float | None = None,
        batch_size: int = 32,
        val: float = 0.1,
        augment: str = "auto",
        normalise: bool = True,
        store: str = "raw",
        classes: Sequence[Label] | None = None,
        side: int | None = None,
        channels: int | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        seed: int = 0,
        case: str | None = None,
        checkpoint: str | Path | None = None,
        listeners: Sequence[Listener] = (),
        verbose: bool = False,
    ) -> None:
        self.net, self.method, self.memory = net, method, memory
        self.epochs, self.lr, self.batch_size, self.val = epochs, lr, batch_size, val
        self.augment, self.normalise, self.store, self.classes = augment, normalise, store, classes
        self.side, self.channels, self.settings, self.device, self.seed = (
            side,
            channels,
            settings,
            device,
            seed,
        )
        self.case, self.checkpoint, self.listeners, self.verbose = case, checkpoint, listeners, verbose

    # Learning

    def learn(
        self,
        data: object,
        labels: object = None,
        *,
        guard: object = None,
        max_drop: float | None = None,
        level: float = LEVEL,
        skip_bad: bool = False,
        allow_outside: bool = False,
    ) -> Report:
        """Learn one more chunk; with `max_drop`, refuse the update if an old class loses more points.

        A loss counts if an exact McNemar test excludes chance at this level; with 1 every loss counts. Of a
        folder with train/, that is learnt, and val/ is the guard set. Files that cannot be read are an error
        unless `skip_bad`, and so are links out of the folder unless `allow_outside`.
        """
        with self._listening() as listener:
            parts, options = split_data(data), ReadOptions(allow_outside, skip_bad, listener.on_message)
            for note in parts.notes:
                listener.on_message(note)
            chunk = self._read(parts.train, labels, listener, options=options)
            held = guard if guard is not None else parts.val
            return self._learn(chunk, listener, held, max_drop, level=level, options=options)

    def _read(
        self,
        data: object,
        labels: object,
        listener: Listener,
        again: bool = False,
        options: ReadOptions = STRICT,
    ) -> Chunk:
        """Read data for the model, or for a new one, whose net is chosen by the data."""
        progress = report_loading(listener)
        if hasattr(self, "model_") and not again:
            model = self.model_
            chunk = read_chunk(
                data, labels, shape=model.shape, transform=model.reader, progress=progress, options=options
            )
            return settle_case(chunk, model.labels, self.case)
        self._choice: NetChoice | None = None
        if not isinstance(self.net, nn.Module):
            given = self._given()
            make_settings(given)  # report faults before the data are read
            self._choice = NetChoice(
                given, find_device(self.device), listener.on_message, side=self.side, typed=self._typed()
            )
        chunk = read_chunk(
            data,
            labels,
            side=self.side,
            channels=self.channels,
            progress=progress,
            choose=self._choice,
            options=options,
        )
        return settle_case(chunk, [plain(label) for label in self.classes or ()], self.case)

    def _learn(
        self,
        chunk: Chunk,
        listener: Listener,
        guard: object = None,
        max_drop: float | None = None,
        announced: Sequence[Label] = (),
        level: float = LEVEL,
        options: ReadOptions = STRICT,
    ) -> Report:
        model, settings = self._candidate(chunk), self._settings()
        check_used(self._typed(), model.settings, len(model.stored_shape) == 1)
        model.settings = model.settings.changed(
            {"learner.memory": settings.learner.memory, "learner.val": settings.learner.val}
            | {f"train.{key}": value for key, value in settings.train.model_dump().items()}
        )
        held = None
        if guard is not None:
            progress = report_loading(listener)
            held = read_chunk(
                guard, shape=model.shape, transform=model.reader, progress=progress, options=options
            )
            held = settle_case(held, [*model.labels, *dict.fromkeys(chunk.labels)], self.case)
        place = None if self.checkpoint is None else Path(self.checkpoint)
        base = getattr(self, "about_", {}).get("lesson")
        name = fingerprint({"base": base, "chunk": chunk.fingerprint, **model.settings.to_dict()})
        checkpoints = update_checkpoints(place, name) if place else None
        with locked(place) if place else nullcontext():
            update = Update(model, chunk, held, announced, [listener], checkpoints)
            report = update.run(inf if max_drop is None else max_drop, level, forget="remove the folder")
        if place:
            files.remove_quietly(place)
        if not report.verdict.passed:
            raise Refused(report)
        self.__dict__.pop("_choice", None)
        self.model_, self.about_ = model, describe(model, chunk, report, name, 0.0)
        return report

    @contextmanager
    def _listening(self) -> Iterator[Listener]:
        """The listeners, and a progress bar if the learner is verbose."""
        with ProgressBar() if self.verbose else nullcontext() as bar:
            yield Listeners([*self.listeners, bar] if bar else self.listeners)

    def _candidate(self, chunk: Chunk) -> Model:
        own = self.net if isinstance(self.net, nn.Module) else None
        device = find_device(self.device)
        if hasattr(self, "model_"):
            return model_of(clone(parts_of(self.model_)), device, own)
        chosen = getattr(self, "_choice", None)
        model = first_model(self._settings(), chunk, device, own, chosen.backbone if chosen else None)
        if chosen and chosen.reader:
            model.reader = chosen.reader
        return model

    def _settings(self) -> ModelSettings:
        if hasattr(self, "model_"):
            kept = self.model_.settings
            own = {
                "net.name": kept.net.name,
                "learner.method": kept.learner.method,
                "net.tune": kept.net.tune,
            }
            return make_settings(
                self._given() | {key: value for key, value in own.items() if value is not None}
            )
        chosen: NetChoice | None = getattr(self, "_choice", None)
        return make_settings(chosen.settings if chosen else self._given())

    def _given(self) -> dict[str, Any]:
        """The settings as the user gave them."""
        classes = None if self.classes is None else [plain(label) for label in self.classes]
        settings = {key: getattr(self, name) for name, key in ARGUMENTS.items()}
        settings |= {
            "net.name": OWN if isinstance(self.net, nn.Module) else self.net,
            "learner.classes": classes,
        }
        if self.lr is None:  # 0.03, or 1 for a head on features of a frozen backbone
            del settings["train.lr"]
        return settings | dict(self.settings or {})

    def _typed(self) -> dict[str, Any]:
        """The settings that are neither the defaults of the constructor nor those of the model."""
        given, arguments = self._given(), signature(type(self).__init__).parameters
        defaults = {key: arguments[name].default for name, key in ARGUMENTS.items()}
        kept = flatten(self.model_.settings.to_dict()) if hasattr(self, "model_") else {}
        own = self.settings or {}
        return {
            key: value
            for key, value in given.items()
            if (key in own or value != defaults.get(key)) and not (key in kept and value == kept[key])
        }

    # The interface of scikit-learn

    def fit(self, X: object, y: object = None) -> Self:
        """Start again with a new model and learn this data."""
        with self._listening() as listener:
            chunk = self._validated(X, y, listener, reset=True)
            for name in ("model_", "about_", "folder_", "version_"):
                self.__dict__.pop(name, None)
            self._learn(chunk, listener)
        return self

    def partial_fit(self, X: object, y: object = None, classes: Sequence[Label] | None = None) -> Self:
        """Learn one more chunk; `classes` can list labels of later chunks."""
        announced = [plain(label) for label in classes] if classes is not None else ()
        with self._listening() as listener:
            chunk = self._validated(X, y, listener, reset=not hasattr(self, "model_"))
            self._learn(chunk, listener, announced=announced)
        return self

    def _validated(self, X: object, y: object, listener: Listener, reset: bool) -> Chunk:
        if y is None and (hasattr(X, "__array__") or isinstance(X, list)):
            raise DataError(
                "Learner requires y to be passed, but the target y is None; give one label per sample"
            )
        if y is not None and are_features(X):  # features are validated by scikit-learn
            X, y = validate_data(self, X, y, reset=reset, dtype=np.float32)
            check_classification_targets(y)
        return self._read(X, y, listener, again=reset)

    def predict(self, X: object) -> NDArray[Any]:
        """The label of each sample: arrays, a PIL image or several, paths of images, a folder of them."""
        answers: NDArray[Any] = self.classes_[self._scores(X).argmax(1).numpy()]
        return answers

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """(N, K) probabilities, in the order of `classes_`."""
        probabilities: NDArray[np.float64] = self._scores(X).double().softmax(1).numpy()
        return probabilities

    def evaluate(
        self,
        data: object,
        labels: object = None,
        *,
        against: str | None = None,
        skip_bad: bool = False,
        allow_outside: bool = False,
    ) -> Evaluation:
        """Correct predictions and samples by class; `against` names a stored version to compare with.

        Of a folder with train/, val/ and test/, the part test is evaluated, or else val.
        """
        check_is_fitted(self, "model_")
        data, note = choose_test_data(data)
        options = ReadOptions(allow_outside, skip_bad, Listeners(self.listeners).on_message)
        chunk = read_chunk(
            data, labels, shape=self.model_.shape, transform=self.model_.reader, options=options
        )
        answers = collect_answers(getattr(self, "version_", "this learner"), self.model_, chunk)
        if against is None:
            return Evaluation(answers, note=note)
        version, other = load_model(self._store(), against, find_device(self.device))
        return Evaluation(answers, collect_answers(version.name, other, chunk), note)

    def _scores(self, X: object) -> Tensor:
        check_is_fitted(self, "model_")
        if paths := paths_of(X):
            if len(paths) > 1 or not is_labelled(paths[0]):
                return torch.cat(list(map(self.model_.scores, read_files(paths, self.model_.shape))))
            inputs = read_chunk(paths[0], shape=self.model_.shape, transform=self.model_.reader).inputs
        else:
            if len(self.model_.shape) == 1 and are_features(X):
                X = validate_data(self, X, reset=False, dtype=np.float32)
            inputs = read_inputs(X, shape=self.model_.shape)
        return self.model_.scores(inputs)

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels by column, in the order in which they were learnt."""
        check_is_fitted(self, "model_")
        labels = self.model_.labels
        return np.array(labels, dtype=None if len({type(label) for label in labels}) == 1 else object)

    # Saving and loading

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the model is stored as its parts, because views are functions."""
        state = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = clone(parts_of(state["model_"]))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "model_"):
            own = self.net if isinstance(self.net, nn.Module) else None
            self.model_ = model_of(state["model_"], find_device(self.device), own)

    def save(self, path: str | Path, keep: int | None = None) -> Version:
        """Write the next version to a folder, which `ser` and `Learner.load` can read.

        The folder keeps the newest `keep` versions, now and later (at first 10); the one in use and its
        parent always stay.
        """
        check_is_fitted(self, "model_")
        store = Store(Path(path))
        with store.locked():
            version = store.commit(parts_of(self.model_), self.about_ | store.policy(keep), {"act": "save"})
            store.prune()
        self.folder_, self.version_ = Path(path), version.name
        return version

    @classmethod
    def load(
        cls,
        path: str | Path,
        version: str | None = None,
        *,
        net: nn.Module | None = None,
        device: str = "auto",
    ) -> Self:
        """Load the version in use, or another; a user's own net must be passed again."""
        found, parts = Store(Path(path)).read(version)
        model = model_of(parts, find_device(device), net)
        settings = model.settings
        learner = cls(
            net if net is not None else settings.net.name,
            settings.learner.method,
            settings.learner.memory,
            epochs=settings.train.epochs,
            lr=None if settings.learner.method in CLOSED_FORM else settings.train.lr,
            batch_size=settings.train.batch_size,
            val=settings.learner.val,
            augment=settings.learner.augment,
            normalise=settings.learner.normalise,
            store=settings.learner.store,
            classes=settings.learner.classes,
            settings=kept_settings(settings),
            device=device,
            seed=settings.learner.seed,
        )
        learner.model_, learner.about_ = model, found.about
        learner.folder_, learner.version_ = Path(path), found.name
        if len(model.shape) == 1:
            learner.n_features_in_ = model.shape[0]
        return learner

    def export(self, path: str | Path) -> Exported:
        """Write the model as one ONNX file, after onnxruntime gives the same logits as PyTorch."""
        check_is_fitted(self, "model_")
        images = torch.cat([images for images, _ in self.model_.kept_samples()])
        return export_model(self.model_, Path(path), images[:100], version=getattr(self, "version_", "-"))

    # Information from the folder, which holds the last saved version, without later updates

    def status(self) -> ModelStatus:
        """Classes, memory and versions of the version that was loaded or saved last."""
        return read_status(self._store(), self.version_)

    def diff(self, first: str, second: str) -> VersionDiff:
        """Differences between two versions in the folder, such as "v1" and "v2" or "candidate"."""
        return diff_versions(self._store(), first, second)

    def history(self) -> list[HistoryEntry]:
        """Every act in the folder, oldest first."""
        return read_history(self._store())

    def _store(self) -> Store:
        if not hasattr(self, "folder_"):
            raise DataError("this learner has no folder; save it first with learner.save(folder)")
        return Store(self.folder_)


def kept_settings(settings: ModelSettings) -> dict[str, Any]:
    """The settings that have no argument of `Learner.__init__`."""
    train = settings.train.model_dump(exclude={"epochs", "lr", "batch_size"}, exclude_none=True)
    if settings.learner.method in CLOSED_FORM:
        train = {}
    method = settings.method.model_dump(exclude={"memory_size"})
    kept = {f"train.{key}": value for key, value in train.items()}
    return (
        kept
        | {f"method.{key}": value for key, value in method.items()}
        | {f"net.{key}": value for key, value in settings.net.options.items()}
    )


def paths_of(data: object) -> list[Path]:
    """The paths, if data is one or several of them."""
    several = list(data) if isinstance(data, list | tuple) else [data]
    paths = [Path(each) for each in several if isinstance(each, str | Path)]
    return paths if len(paths) == len(several) else []


def are_features(data: Any) -> bool:
    """Whether data are features that scikit-learn must validate: at most two dimensions, and no tensor."""
    if isinstance(data, Tensor) or (isinstance(data, list) and data and hasattr(data[0], "convert")):
        return False
    return len(data.shape if hasattr(data, "shape") else np.asarray(data).shape) <= 2


def plain(label: Any) -> Label:
    value: Label = label.item() if isinstance(label, np.generic) else label
    return normalise(value) if isinstance(value, str) else value


def clone(tree: Any) -> Any:
    """A deep copy of a tree, with detached tensors."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: clone(value) for key, value in tree.items()}
    return type(tree)(clone(value) for value in tree) if isinstance(tree, list | tuple) else tree
