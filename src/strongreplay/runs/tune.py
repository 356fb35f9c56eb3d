"""MethodStudy: Optuna searches the settings of one method; every trial is a run judged on held-out data.

`data.validation` replaces the test data of every trial, so nothing chosen here has seen them. After each task
a trial reports its accuracy, and is stopped if most others were better there. Trials are in a journal: a
search that was stopped or killed resumes where it was, and its unfinished trials from their checkpoints. The
best trials are run with further seeds, and the best mean is written as a recipe.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from strongreplay.errors import ConfigError
from strongreplay.protocol import derive_generator
from strongreplay.runs.config import RunConfig, config_of
from strongreplay.runs.grid import Job, find_record
from strongreplay.runs.run import state_folder
from strongreplay.runs.search_space import Space
from strongreplay.storage import files
from strongreplay.storage.records import RunRecord, fingerprint, format_settings
from strongreplay.training.events import Scores

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

Pruning = Literal["median", "halving", "none"]
SEED = 0  # of every trial
WHOLE = 100.0  # per cent
MAIN_SCENARIOS = ("class-il", "domain-il")
SEARCHED = ("train.", "method.", "net.")


@dataclass(slots=True)
class TrialResult:
    """One trial, for the table and the recipe."""

    number: int
    state: str  # complete, pruned, failed or running
    accuracy: float | None  # on held-out data, in per cent; of a pruned trial, when it was stopped
    settings: dict[str, Any]
    finals: list[float] = field(default_factory=list)  # accuracies of a finalist, a seed each


class MethodStudy:
    """The search for one method: makes jobs for a grid, and learns from how they end."""

    def __init__(
        self, config: RunConfig, space: Space, folder: Path, trials: int, pruning: Pruning = "median"
    ) -> None:
        self.config, self.space, self.folder, self.num_trials = config, space, folder, trials
        searched = json.dumps([repr(sorted(space.items())), pruning, fingerprint(config.to_dict())])
        digest = hashlib.sha256(searched.encode()).hexdigest()[:10]
        self.name = f"{config.stream} {config.method_name} {digest}"
        self.study = open_study(folder, self.name, pruning)
        self.running: dict[str, Trial] = {}  # by the name of the job
        self.reported: dict[str, set[int]] = {}  # tasks after which a trial was judged
        self.pruned: set[str] = set()
        if not self.study.trials:  # the recipe's own settings are the first trial
            known = {key: one.drawn(value_of(config, key)) for key, one in space.items()}
            self.study.enqueue_trial(known, skip_if_exists=True)

    def jobs(self) -> Iterator[Job]:
        """A job for each trial that is left: first those that were stopped, then new ones."""
        from optuna.trial import Trial, TrialState

        for frozen in self.study.get_trials(states=[TrialState.RUNNING]):
            yield from self.job_of(Trial(self.study, frozen._trial_id))
        while (number := len(self.begun())) < self.num_trials:
            self.study.sampler = make_sampler(f"{self.name} {number}")
            yield from self.job_of(self.study.ask())

    def begun(self) -> "list[FrozenTrial]":
        """All trials but those that wait: the recipe's settings wait before the first trial."""
        return [one for one in self.study.get_trials(deepcopy=False) if one.state.name != "WAITING"]

    @property
    def num_finished(self) -> int:
        return sum(one.state.is_finished() for one in self.study.get_trials(deepcopy=False))

    def job_of(self, trial: "Trial") -> Iterator[Job]:
        """The job of a trial; none if its record is there already, as after a kill before it was noted."""
        settings = {key: one.suggest(trial, key) for key, one in self.space.items()}
        trial.set_user_attr("settings", settings)
        job = Job.of(with_settings(self.config, settings, SEED))
        job.name = job.label = f"{job.name} trial {trial.number + 1}"
        self.running[job.name] = trial
        self.reported[job.name] = set(self.study.trials[trial.number].intermediate_values)
        if record := find_record(job.config, self.folder):
            self.tell(job, record)
        else:
            yield job

    def goes_on(self, job: Job, index: int, scores: Scores) -> bool:
        """Whether a trial is worth its next task; trials that were stopped early are never finalists."""
        trial, row = self.running.get(job.name), scores[main_scenario(scores)]
        if trial is None:  # a finalist with a further seed
            return True
        if index not in self.reported[job.name]:  # a task is learnt twice after a kill
            self.reported[job.name].add(index)
            # Optuna compares a trial's best value so far with the others' at this task. Accuracy falls from
            # task to task, so a hundred a task is added: the last value is the best one.
            trial.report(mean([value or 0.0 for value in row[: index + 1]]) + WHOLE * index, index)
            if index + 1 < len(row) and trial.should_prune():
                self.pruned.add(job.name)
        return job.name not in self.pruned

    def end(self, job: Job) -> None:
        """Note how a trial ended; one that was stopped with the command goes on next time."""
        from optuna.trial import TrialState

        if job.name not in self.running:
            return
        how = job.ended[0] if job.ended else ""
        if job.name in self.pruned:
            self.study.tell(self.running.pop(job.name), state=TrialState.PRUNED)
            files.remove_quietly(state_folder(self.folder, job.config))
            job.ended = ("recorded", "stopped early, others were better at this task")
        elif how == "recorded" and (record := find_record(job.config, self.folder)):
            self.tell(job, record)
        elif how == "failed":
            self.study.tell(self.running.pop(job.name), state=TrialState.FAIL)

    def tell(self, job: Job, record: RunRecord) -> None:
        self.study.tell(self.running.pop(job.name), accuracy_of(record))

    def best(self, count: int) -> "list[FrozenTrial]":
        """The best complete trials; the earlier one of two equal ones."""
        from optuna.trial import TrialState

        complete = self.study.get_trials(states=[TrialState.COMPLETE])
        return sorted(complete, key=lambda one: (-(one.value or 0.0), one.number))[:count]

    def final_jobs(self, finalists: int, seeds: int) -> Iterator[Job]:
        """The best trials with further seeds, which also hold out other samples."""
        for frozen in self.best(finalists):
            for seed in range(seeds):
                config = with_settings(self.config, frozen.user_attrs["settings"], seed)
                if find_record(config, self.folder) is None:
                    yield Job.of(config)

    def tried(self, finalists: int, seeds: int) -> list[TrialResult]:
        """All trials; the finalists with the accuracy of every seed that is recorded."""
        final = {one.number for one in self.best(finalists)}
        found = []
        for frozen in self.begun():
            settings, value = frozen.user_attrs.get("settings", {}), frozen.value
            if value is None and frozen.last_step is not None:
                value = frozen.intermediate_values[frozen.last_step] - WHOLE * frozen.last_step
            one = TrialResult(frozen.number, STATES.get(frozen.state.name, "running"), value, settings)
            if frozen.number in final:
                configs = [with_settings(self.config, settings, seed) for seed in range(seeds)]
                records = [find_record(config, self.folder) for config in configs]
                one.finals = [accuracy_of(record) for record in records if record]
            found.append(one)
        return found


STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


def open_study(folder: Path, name: str, pruning: Pruning) -> "Study":
    """The study of this name in the folder's journal; made if there is none."""
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise ConfigError(
            "ser tune needs Optuna; install it with: pip install 'strongreplay[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners: dict[str, Any] = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=5),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(),
        "none": lambda: optuna.pruners.NopPruner(),
    }
    files.make_folder(folder)
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    return optuna.create_study(
        storage=storage, study_name=name, direction="maximize", pruner=pruners[pruning](), load_if_exists=True
    )


def make_sampler(name: str) -> Any:
    """A sampler for one trial: draws do not depend on whether the search was stopped in between."""
    from optuna.samplers import TPESampler

    seed = int(derive_generator(SEED, name).initial_seed() % 2**32)
    return TPESampler(seed=seed)


def with_settings(config: RunConfig, settings: Mapping[str, Any], seed: int) -> RunConfig:
    """The configuration with other settings and another seed, checked anew."""
    held = config.to_dict() | {"seed": seed}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        held[section] = {**held.get(section, {}), name: value}
    return config_of(held, config.source)


def check_space(config: RunConfig, space: Space) -> None:
    """One ConfigError about all settings that are unknown, out of range, or must not be searched."""
    faults = [
        f"{key} cannot be searched: what is learnt on and judged by stays the same for all; it must begin "
        f"with {', '.join(SEARCHED)}"
        for key in space
        if not key.startswith(SEARCHED)
    ]
    for key, one in space.items():
        for end in one.ends if key.startswith(SEARCHED) else ():
            try:
                with_settings(config, {key: end}, SEED)
            except ConfigError as error:
                faults += [f"{config.method_name}: {line}" for line in str(error).splitlines()]
    if faults:
        raise ConfigError("\n".join(dict.fromkeys(faults)))


def value_of(config: RunConfig, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def main_scenario(scores: Any) -> str:
    return next(name for name in MAIN_SCENARIOS if name in scores)


def accuracy_of(record: RunRecord) -> float:
    """The mean accuracy over all tasks after the last; in Class-IL if the stream has it."""
    scenario = main_scenario(record.results["accuracy"])
    return float(record.score(scenario, "average_accuracy") or 0.0)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def choose(tried: list[TrialResult]) -> TrialResult | None:
    """The finalist with the best mean over its seeds."""
    return max((one for one in tried if one.finals), key=lambda one: mean(one.finals), default=None)


def section_of(config: RunConfig) -> str:
    """The name of a method's section in a recipe, such as ser.200."""
    size = getattr(config.method, "memory_size", None)
    plain = config.method_name.replace("_", "").replace("-", "").isalnum()
    name = config.method_name if plain else json.dumps(config.method_name)
    return name if size is None else f"{name}.{size}"


def write_recipe(
    path: Path,
    tried: list[tuple[RunConfig, list[TrialResult]]],
    fixed: Mapping[str, Iterable[str]],
    source: str,
    command: str,
) -> None:
    """Write the best settings of each method as a recipe for `ser run --recipe FILE`, with every trial.

    `fixed` names, for each method, settings that were the same in all trials and are part of the recipe.
    """
    stream = tried[0][0].stream
    lines = [f"# Written by: {command}", 'recipe = "tuned"', f"streams = [{json.dumps(stream)}]"]
    for config, trials in tried:
        if best := choose(trials):
            found = ", ".join(f"{accuracy:.2f}" for accuracy in best.finals)
            lines += ["", f"[{section_of(config)}]", f"source = {json.dumps(f'{source}: {found} %')}"]
            settings = {key: value_of(config, key) for key in fixed[config.method_name]} | best.settings
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items() if value is not None]
    for config, trials in tried:
        for one in trials:
            lines += [
                "",
                "[[trials]]",
                f"method = {json.dumps(config.method_name)}",
                f"number = {one.number + 1}",
            ]
            lines += [f'state = "{one.state}"', f"settings = {json.dumps(format_settings(one.settings))}"]
            lines += [] if one.accuracy is None else [f"accuracy = {one.accuracy!r}"]
            lines += [f"finals = {one.finals!r}"] if one.finals else []
    files.write_text(path, "\n".join(lines) + "\n")
