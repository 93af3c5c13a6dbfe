"""A search: many short runs on one cluster, by Optuna, chosen on rows that none is trained on.

Every trial is a run with its own directory in the search's folder. All of them take the rows that
the first one has read (`daskxml.cluster.shared_rows`), several step side by side, each on all
workers, and a trial that falls behind is ended by the exception of Optuna's pruner. Optuna's own
storage, a journal in the folder, holds what was chosen and reached, so that a search that was
interrupted goes on: with the trials that were under way, each from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import tomli_w
from distributed import Client
from optuna.trial import FrozenTrial, Trial, TrialState

from daskxml.api.collections import DaskRows, RowsOnWorkers
from daskxml.api.mixtures import ENDS, begun
from daskxml.api.run import Run
from daskxml.api.runs import keep_rows, open_runs
from daskxml.api.study import (
    JOURNAL,
    EvaluationReport,
    Plan,
    distribution,
    open_study,
    settings_of,
)
from daskxml.api.train import (
    STAGES,
    Config,
    Rows,
    local_section,
    place_given,
    resolve_rows,
    staged_rows,
    train,
    without_stages,
)
from daskxml.cluster.connection import connection
from daskxml.config import RunConfig, load_run_config
from daskxml.config.space import load_space, run_file_tables
from daskxml.config.toml import Tables, one_line_lists
from daskxml.core.errors import ConfigError, ModelError, TrainingError
from daskxml.core.files import lock_folder, replacing
from daskxml.core.signals import defer_signals
from daskxml.models.kinds import MixtureParts
from daskxml.models.store import TENSORS_NAME
from daskxml.models.trained import Model
from daskxml.observe.callbacks import OnEvent, ignore
from daskxml.observe.report.search import (
    COMPLETE,
    FAILED,
    PRUNED,
    RUNNING,
    TrialRecord,
    best_trial,
    write_search,
)
from daskxml.records.checkpoint import FOLDER as CHECKPOINTS
from daskxml.session.commands import STOP

BASE_FILE, SPACE_FILE, BEST_FILE = "base.toml", "space.toml", "best.toml"
VALIDATION = 0.1  # of the training rows, where the run file holds out none
_STATES = {
    TrialState.COMPLETE: COMPLETE,
    TrialState.PRUNED: PRUNED,
    TrialState.FAIL: FAILED,
    TrialState.RUNNING: RUNNING,
}


@dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    Attributes
    ----------
    trials
        In the order of their numbers.
    metric
        By which they are compared, on the validation rows.
    config
        The run file, with the settings of the best trial.
    model
        Of the best trial.
    out
        The search's folder, or None.
    reason
        ``trials``: all are over; or ``interrupt``: go on with ``resume``.
    """

    trials: tuple[TrialRecord, ...]
    metric: str
    config: RunConfig
    model: Model
    out: Path | None
    reason: str

    @property
    def best(self) -> TrialRecord:
        """The complete trial with the highest value."""
        found = best_trial(self.trials)
        assert found is not None
        return found

    def __repr__(self) -> str:
        best = f"{self.metric} {self.best.value:.4f} in trial {self.best.number}"
        return f"<SearchResult: {len(self.trials)} trials, ended by {self.reason}; {best}>"


def search(
    config: Config | None = None,
    space: str | Path | Mapping[str, Any] | None = None,
    *,
    client: Client | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    train: Rows | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    trials: int | None = None,
    parallel: int | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    on_event: OnEvent | None = None,
) -> SearchResult:
    """Find the settings of a run file that are best on validation rows.

    Trials are compared by the run file's ``training.target_metric`` on the rows that
    ``data.validation`` holds out of training, a tenth where it says nothing. Test rows are not
    read.

    Parameters
    ----------
    config, overrides, train
        As for `daskxml.train`. Without ``train`` or with files, a search can go on in another
        process.
    space
        A space file, or a dictionary of its sections: which keys are varied
        (`daskxml.config.space`).
    client, scheduler, workers
        The cluster, as for `daskxml.train`.
    out
        Folder of the search, visible to client and workers: the storage, a directory for each
        trial, ``best.toml`` and a report. None: all in memory, and the search cannot go on.
    resume
        Folder of a search to go on with, in the place of ``config``, ``space`` and ``out``.
    trials, parallel
        Win over ``[search]`` of the space file. More trials than before prolong a search.
    on_event
        Called with ``{"kind": "trial", "trial": TrialRecord}`` as a trial begins and ends, and with
        the warnings of all runs.

    Raises
    ------
    ConfigError
        If the space does not fit the run file, or no trial was completed.
    InputError, ModelError, ClusterError
        As `daskxml.train`.

    Examples
    --------
    ::

        space = {"strategy": {"lr": {"low": 0.01, "high": 1.0, "log": True}}}
        found = daskxml.search("adaptive-sgd", space, train="train.txt", out="runs/lr")
        found.best.settings, found.model
    """
    if resume is not None:
        if not (config is None and space is None and out is None):
            raise ConfigError("resume: run file, space and folder are those of the search: give "
                              "none of them")  # fmt: skip
        config, space = _stored(Path(resume))
        out = resume
    if config is None or space is None:
        raise ConfigError("a search needs a run file and a space")
    resolved, given = resolve_rows(config, train, None, overrides, workers)
    tables = _trial_tables(config, overrides, resolved)
    limits = {"trials": trials, "parallel": parallel}
    settings = {name: limit for name, limit in limits.items() if limit is not None}
    plan = Plan(
        load_space(space, tables, settings), tables, None if out is None else Path(out).absolute()
    )
    section, publish = local_section(resolved), _Locked(on_event or ignore)
    with (
        _folder(plan, is_resumed=resume is not None),
        _quiet_optuna(),
        connection(
            client, scheduler, section, lambda text: publish({"kind": "warning", "text": text})
        ) as connected,
        staged_rows(
            connected, load_run_config(resolved, {"data.test": []}), given,
            plan.out and plan.out / STAGES, publish,
        ) as staged,
    ):  # fmt: skip
        open_runs(connected)
        placed = place_given(connected, staged, resolved)
        rows = (
            RowsOnWorkers(
                placed["train"],
                placed.get("weights", ()),
                placed.get("names", ()),
                isinstance(staged["train"], DaskRows),
            )
            if placed
            else None
        )
        with keep_rows(connected):
            return _Search(plan, connected, rows, publish).run()


def _stored(folder: Path) -> tuple[Path, Path]:
    """Return the run file and the space file of a search."""
    if not (folder / JOURNAL).is_file():
        raise ModelError(f"{folder}: no search to go on with here (there is no {JOURNAL})")
    return folder / BASE_FILE, folder / SPACE_FILE


def _trial_tables(
    config: Config, overrides: Iterable[str] | Mapping[str, Any], resolved: RunConfig
) -> Tables:
    """Return the sections of the run file that trials begin with."""
    if isinstance(resolved.model, MixtureParts):
        problem = "is trained part by part: search the run file of a part"
        raise ConfigError(f"[model] kind = 'mixture': {problem}")
    training, ranks = resolved.training, resolved.evaluation.k
    if training.target_rank not in ranks:
        raise ConfigError(
            f"[training] target_metric = {training.target_metric!r}, by which trials are "
            f"compared, is never measured: add {training.target_rank} to [evaluation] k = "
            f"{list(ranks)}"
        )
    tables = run_file_tables(config, overrides)
    absolute = resolved.as_dict()
    data = tables.setdefault("data", {})
    for key in ("train", "test", "feature_names", "label_names"):
        if absolute["data"][key]:
            data[key] = absolute["data"][key]
    data["validation"] = resolved.data.validation or VALIDATION
    tables.setdefault("cluster", {})["workers"] = resolved.cluster.workers
    return tables


@contextlib.contextmanager
def _folder(plan: Plan, *, is_resumed: bool) -> Iterator[None]:
    """Lock the folder of a search, with the files that it goes on with."""
    if plan.out is None:
        yield
        return
    with lock_folder(plan.out, "a search is under way in this folder"):
        if not is_resumed and (plan.out / JOURNAL).exists():
            raise ConfigError(f"{plan.out}: holds a search: go on with --resume, or choose another")
        for name, tables in ((BASE_FILE, plan.tables), (SPACE_FILE, plan.space.as_dict())):
            _write_toml(plan.out / name, tables)
        yield


def _write_toml(path: Path, tables: Mapping[str, Any]) -> None:
    with replacing(path) as partial:
        partial.write_text(one_line_lists(tomli_w.dumps(tables)), encoding="utf-8")


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Let Optuna log nothing: it would say what `on_event` is told."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


class _Locked:
    """Lets one thread at a time call a function."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call, self._lock = call, threading.Lock()

    def __call__(self, event: Any) -> None:
        with self._lock:
            self._call(event)


# ---------------------------------------------------------------------------------- the search


class _Search:
    """Keeps so many trials under way, until there are as many as wanted."""

    def __init__(
        self, plan: Plan, client: Client, rows: RowsOnWorkers | None, publish: Callable[..., None]
    ) -> None:
        self.plan, self.client, self.rows, self.publish = plan, client, rows, publish
        self.study = open_study(plan)
        self.metric = plan.base.training.target_metric
        self._distributions = {
            key: distribution(dimension) for key, dimension in plan.space.dimensions.items()
        }
        self._running: dict[Future[Run | None], Trial] = {}
        self._stops = 0  # asked for: the first lets runs end at a merge, the second at once
        self._best: Run | None = None

    def run(self) -> SearchResult:
        """Execute the search.

        Ctrl-C lets the trials under way end at a merge, with checkpoints, to go on from; a second
        one ends them at once.
        """
        waiting = [
            Trial(self.study, it._trial_id) for it in self._frozen() if it.state.name == "RUNNING"
        ]
        with ThreadPoolExecutor(self.plan.space.search.parallel) as pool:
            failure: BaseException | None = None
            while True:
                try:
                    with defer_signals():
                        self._collect()
                        self._fill(pool, waiting)
                    if not self._running:
                        break
                    wait(self._running, return_when=FIRST_COMPLETED)
                except KeyboardInterrupt:
                    self._stops += 1
                    text = "trials end at their next merge; Ctrl-C again ends them at once"
                    self.publish({"kind": "warning", "text": text})
                except BaseException as error:
                    failure, self._stops = failure or error, max(self._stops, 1)
            if failure is not None:
                raise failure
        return self._result()

    def _fill(self, pool: ThreadPoolExecutor, waiting: list[Trial]) -> None:
        """Begin trials, first those that a search before has left."""
        search = self.plan.space.search
        while not self._stops and len(self._running) < search.parallel:
            if waiting:
                trial = waiting.pop(0)
            elif len(self._frozen()) < search.trials:
                trial = self.study.ask(self._distributions)
            else:
                return
            self._running[pool.submit(self._train, trial)] = trial
            self._tell_user(trial.number)

    def _collect(self) -> None:
        """Tell Optuna how trials ended that are over; raise what ended one unexpectedly."""
        for future in [future for future in self._running if future.done()]:
            trial = self._running.pop(future)
            try:
                run = future.result()
            except _EndedAtOnce:
                continue  # it will go on from its last checkpoint
            except optuna.TrialPruned:
                self._end(trial, TrialState.PRUNED)
            except TrainingError as error:  # such as a loss that is no number: a bad setting
                trial.set_user_attr("problem", error.message)
                self._end(trial, TrialState.PRUNED)
            except _Refused as error:
                trial.set_user_attr("problem", str(error))
                self._end(trial, TrialState.FAIL)
            else:
                self._end_well(trial, run)

    def _end_well(self, trial: Trial, run: Run | None) -> None:
        if run is None or run.reason not in ENDS:
            return  # it was interrupted, and will go on
        value = run.metrics.get(self.metric)
        if value is None:
            trial.set_user_attr("problem", "was never evaluated")
            return self._end(trial, TrialState.FAIL)
        before = best_trial(self.records())
        trial.set_user_attr("value", value)
        self._end(trial, TrialState.COMPLETE, value)
        if before is None or before.value is None or value > before.value:
            self._best = run
            self._drop_model(before)
        else:
            self._drop_model(self.records()[trial.number])

    def _end(self, trial: Trial, state: TrialState, value: float | None = None) -> None:
        self.study.tell(trial, value, state=state)
        place = self._place(trial.number)
        if place is not None:
            shutil.rmtree(place / CHECKPOINTS, ignore_errors=True)
        self._tell_user(trial.number)
        self._write()

    def _drop_model(self, trial: TrialRecord | None) -> None:
        """Remove the arrays of a model that is not the best; its header tells how the run ended."""
        if trial is not None and trial.out is not None:
            (trial.out / TENSORS_NAME).unlink(missing_ok=True)

    # ---------------------------------------------------------------------------- one trial

    def _train(self, trial: Trial) -> Run | None:
        """Train a trial, in a thread of its own; return None if it is not begun any more."""
        if self._stops:
            return None
        try:
            config = self.plan.config(settings_of(self.plan.space, trial.params))
            if config.pipeline.stages:
                config = without_stages(config)
        except ConfigError as error:
            raise _Refused(error.message) from error
        place: Any = begun(self._place(trial.number))
        return train(
            config,
            client=self.client,
            train=self.rows,
            on_event=lambda event: self._hear(trial, event),
            on_megabatch=EvaluationReport(trial, self.metric, config.evaluation.every),
            raises=[optuna.TrialPruned],
            **place,
        )

    def _hear(self, trial: Trial, event: Mapping[str, Any]) -> Any:
        """Pass warnings on; end the run if the search is to end."""
        if event["kind"] == "warning":
            text = f"trial {trial.number}: {event['text']}"
            self.publish({"kind": "warning", "text": text})
        if self._stops > 1:
            raise _EndedAtOnce
        return STOP if self._stops else None

    def _place(self, number: int) -> Path | None:
        return None if self.plan.out is None else self.plan.out / f"trial-{number:04d}"

    # -------------------------------------------------------------------------- what is known

    def _frozen(self) -> list[FrozenTrial]:
        return list(self.study.get_trials(deepcopy=False))

    def records(self) -> list[TrialRecord]:
        """Return all trials, by their numbers."""
        return [self._record(trial) for trial in self._frozen()]

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        known, reported = trial.user_attrs, trial.intermediate_values
        return TrialRecord(
            number=trial.number,
            state=_STATES[trial.state],
            settings=settings_of(self.plan.space, trial.params),
            value=known.get("value", max(reported.values(), default=None)),
            evaluations=dict(reported),
            epochs=known.get("epochs", 0.0),
            seconds=known.get("seconds", 0.0),
            problem=known.get("problem", ""),
            out=self._place(trial.number),
        )

    def _tell_user(self, number: int) -> None:
        self.publish({"kind": "trial", "trial": self._record(self._frozen()[number])})

    def _write(self) -> None:
        """Write the report and the best run file, as far as they are known."""
        out, records = self.plan.out, self.records()
        if out is None:
            return
        write_search(out, records, self.metric)
        best = best_trial(records)
        if best is not None:
            _write_toml(out / BEST_FILE, self.plan.config(best.settings).as_dict())

    def _result(self) -> SearchResult:
        records = self.records()
        best = best_trial(records)
        if best is None:
            if self._stops:
                raise KeyboardInterrupt
            problems = [trial.problem for trial in records if trial.problem]
            why = f"; the last one: {problems[-1]}" if problems else ""
            raise ConfigError(f"none of {len(records)} trials was completed{why}")
        if self._best is None:  # it was found before this search went on
            assert best.out is not None
            model = Model.load(best.out)
        else:
            model = self._best.model
        return SearchResult(
            trials=tuple(records),
            metric=self.metric,
            config=self.plan.config(best.settings),
            model=model,
            out=self.plan.out,
            reason="interrupt" if self._stops else "trials",
        )


class _Refused(Exception):  # noqa: N818 - no error of the search
    """A trial whose settings do not go together."""


class _EndedAtOnce(BaseException):
    """A trial that does not wait for a merge, as Ctrl-C was pressed twice."""
