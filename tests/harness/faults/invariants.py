"""What must hold in a run: after every event, after a loss of power, and when all is over."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.cluster.run_driver import RunDriver
from daskxml.core.arrays import Array
from daskxml.core.files import is_locked
from daskxml.models.network.spec import Layout
from daskxml.models.store import read_model
from daskxml.models.trees.forest import ARRAYS
from daskxml.records.checkpoint import checkpoints, read_checkpoint, read_member, stored_members
from daskxml.records.run_dir import HISTORY_FILE, RUN_FILE, read_history
from daskxml.session.ledger import Ledger, Span
from daskxml.worker.resident_rows import span_rows
from daskxml.worker.training_worker import TrainingWorker
from harness.faults.counting import LABELS, ROWS, TEST, TRAIN, precision, whole_tree
from harness.faults.machines import Cluster, Worker
from harness.idle import is_idle
from harness.records import check_trees, objections

_OPEN = {"events": [], "wall_s": 0.0}
CLOSE = 1e-4  # float32 sums of some hundred ones
Model = dict[str, Array]


def model_of(worker: Any) -> Model:
    """Return copies of what a worker has of the global model, by names that all have in common."""
    return {"current": worker.current.copy()}


def _first_difference(history: list[Any], rows: list[str]) -> int:
    """Return the number of the first row that is not as it was published; 0: none.

    Workers may join, or be lost, while a checkpoint is written: its last row has no such event.
    """
    for row, published in zip(history, rows, strict=False):
        if json.loads(json.dumps(row)) | _OPEN != json.loads(published) | _OPEN:
            return int(row["megabatch"])
    return 0


class Violated(Exception):  # noqa: N818 - a finding
    """An invariant does not hold."""


def require(holds: bool, what: str) -> None:
    """Raise `Violated` unless a condition holds."""
    if not holds:
        raise Violated(what)


class Truth:
    """The account of a run from outside: rows as published, and models as committed.

    Parameters
    ----------
    cluster
        The workers.
    seed, is_replicated
        Of the run, for the order of its rows; whether each worker holds all.
    """

    most_tasks = (4, 8)  # on the scheduler: for each worker, and for those that come or go

    def __init__(self, cluster: Cluster, seed: int, is_replicated: bool) -> None:
        self.cluster, self._seed = cluster, seed
        self._streams = (ROWS,) if is_replicated else TRAIN
        self.audits = True  # the record at the end, as `daskxml verify` does
        self.rows: list[str] = []  # of the history, as JSON
        self._before: list[list[str]] = []  # the rows before each restart: the journal lags behind
        self.models: dict[int, Model] = {}  # by generation, of the session that is under way
        self._given_up: dict[int, list[Model]] = {}  # of sessions that were gone back before
        self.stored = 0  # mega-batches in the last checkpoint that was acknowledged
        self._last_stored: Any = None
        self._has_gone_back = False  # since then
        self._session: Any = None
        self._dealt: int | None = None  # leases when the run was stopped
        self._read = 0  # events
        self._seen: list[Counter[Any]] = []  # of each published row
        self._unchecked: list[tuple[RunDriver, dict[str, Any]]] = []  # rows before their model

    def begin(self, driver: RunDriver, checkpoint: str | None) -> None:
        """Begin with a new scheduler."""
        self._read, self._spec = 0, driver.config.model_spec(ROWS, LABELS)
        models, history = {}, []
        if checkpoint is not None:
            models, session = read_checkpoint(checkpoint)
            history = session["history"]
        if (model := self._found_given_up(models, history)) is not None:
            self.models = {len(history): model}
        else:
            self._require_same(history, "the checkpoint to resume from")
        self._before.append(self.rows)  # what the journal holds until the run is ready
        self.rows = [json.dumps(row) for row in history]
        self._seen = [Counter(chain(*self._rows_of(row).values())) for row in history]

    def _found_given_up(self, models: Mapping[str, Any], history: list[Any]) -> Model | None:
        """Return the model of a checkpoint that nobody acknowledged, before the run went back."""
        known = self._given_up.get(len(history), ())
        return next((model for model in known if self._is_model(models, model)), None)

    def _require_same(self, history: list[Any], what: str) -> None:
        """Check that a checkpoint holds what was published, and perhaps a row more.

        Until there is a checkpoint after it has gone back, that may be what was published before.
        """
        histories = [self.rows, *(self._before if self._has_gone_back else ())]
        other = [_first_difference(history, rows) for rows in histories]
        require(0 in other, f"{what}: another row {other[0]}")

    def _rewind(self, megabatches: int) -> None:
        self._before.append(list(self.rows))
        self._has_gone_back = True
        del self.rows[megabatches:], self._seen[megabatches:]
        self._unchecked = [it for it in self._unchecked if it[1]["megabatch"] <= megabatches]

    def is_history(self, rows: list[str], *, may_be_old: bool) -> bool:
        """Whether a user has got the run's rows, or those that it had before it was resumed."""
        return rows == self.rows or (may_be_old and rows == self._before[-1])

    # ------------------------------------------------------- after every event

    def committed(self, worker: Worker, trained: TrainingWorker) -> None:
        """Check that workers that commit one merge have one model, and the row of that merge."""
        driver, generation = self.cluster.driver, trained.generation
        queue = worker.plugin.queues.get(driver.run)
        self._follow_session(driver)
        if queue is None or queue.worker is not trained:
            return
        model, known = model_of(trained), self.models.setdefault(generation, {})
        both = known.keys() & model.keys()
        require(
            all(np.array_equal(known[name], model[name]) for name in both),
            f"the models of merge {generation} differ between workers",
        )
        known |= model
        self._check_models()

    def _follow_session(self, driver: RunDriver) -> None:
        session = getattr(driver, "session", None)
        if session is not None and session is not self._session:
            self._session, self._dealt, begun = session, None, len(session.history)
            for n, model in self.models.items():
                if n > begun:  # a checkpoint of it may be there, which nobody acknowledged
                    self._given_up.setdefault(n, []).append(model)
            self.models = {n: model for n, model in self.models.items() if n <= begun}
            self._unchecked.clear()

    def check(self) -> None:
        """Check what holds between any two events of the scheduler."""
        driver = self.cluster.driver
        if driver is None:
            return
        self._follow_session(driver)
        events = driver.event_log.events
        while self._read < len(events):
            self._published(driver, events[self._read])
            self._read += 1
        if driver.stored is not None or driver.executor is not None:
            self._check_stored(driver)
        self._check_scheduler(driver)
        self._check_leases(driver)

    def _check_scheduler(self, driver: RunDriver) -> None:
        """What the scheduler holds for a run follows from its workers, not from its rows.

        But for a task for each span of a lease that comes from another worker.
        """
        workers, (each, more) = len(self.cluster.scheduler.workers), self.most_tasks
        tasks = sum("-fetch-" not in task.key for task in self.cluster.tasks)
        events = driver.events.qsize()
        require(tasks <= each * workers + more, f"the scheduler has {tasks} tasks at once")
        require(events <= 8 * workers + 16, f"{events} events wait for the run's driver")

    def _check_stored(self, driver: RunDriver) -> None:
        stored = driver.executor.stored if driver.executor is not None else driver.stored
        if stored is not None and stored is not self._last_stored:
            self.stored = len(stored[0]["history"])
            self._last_stored, self._has_gone_back = stored, False
            self._given_up.clear()

    def _check_leases(self, driver: RunDriver) -> None:
        executor, group = driver.executor, driver.group
        if executor is None or executor.session.stage in ("idle", "lost", "over"):
            return
        for lease, handle in executor._leases.items():
            is_owned = group.workers.get(handle.name) is handle
            require(is_owned, f"lease {lease} is with {handle.name}, which takes no part")
        session = executor.session
        if session.stage != "train":
            waited_for = {*session.strategy.merging(session.state)} or {*session.present()}
            busy = {name for work in session._allocator._open.values() for name in work.spans}
            require(not busy & waited_for, "work is open while merging")
        self._check_stop(session)
        self._check_late(session)
        for number, work in session._allocator._open.items():
            present = work.spans.keys() <= session.workers.keys()
            require(present, f"work {number} has no owner")
        held = {name for name, spans in session.ledger.held.items() if spans}
        if not session.strategy.shares_model:
            require(held <= session.workers.keys(), f"rows are held by {held}")

    def _check_stop(self, session: Any) -> None:
        """Nothing more is leased once the run is to end with this mega-batch."""
        dealt = session._allocator.allocated
        if session.stop_reason and session.stage in ("train", "merge"):
            self._dealt = dealt if self._dealt is None else self._dealt
            require(dealt == self._dealt, "a run that is stopped leases more rows")
        else:
            self._dealt = None

    @staticmethod
    def _check_late(session: Any) -> None:
        """Late workers evaluate nothing, and a merge waits for others only, and not for ever."""
        if session.stage == "evaluate":
            asked = {command.worker for command in session._round._open.values()}
            require(asked <= {*session.present()}, "a late worker evaluates")
        state = session.state
        if session.stage == "train" and state.waits_for and not state.is_grace_over:
            require(session.deadline_s() < math.inf, "a merge waits for ever")
            here = [state.members[name] for name in session.present()]
            are_in = all(worker.is_in for worker in here)
            require(state.waits_for == "work" or not are_in, "a merge waits for nobody")

    def _published(self, driver: RunDriver, event: dict[str, Any]) -> None:
        if event["kind"] == "rewound":
            self._rewind(event["megabatch"])
        elif event["kind"] == "megabatch":
            row = event["row"]
            require(row["megabatch"] == len(self.rows) + 1, f"row {row['megabatch']} out of turn")
            self.rows.append(json.dumps(row))
            self._check_row(driver, row)

    def _check_row(self, driver: RunDriver, row: dict[str, Any]) -> None:
        """Each row counts once in an epoch, and is in the model that was committed."""
        parts = self._rows_of(row)
        seen = Counter(chain(*parts.values()))
        self._seen.append(seen)
        every = sum(self._seen, Counter())  # of all epochs
        twice = [place for place, count in every.items() if count > 1]
        require(not twice, f"(epoch, row) {twice[:3]} of mega-batch {row['megabatch']} twice")
        require(row["rows"] == every.total(), "the count of rows is not that of the leases")
        last = max(epoch for epoch, _ in every)
        whole = Counter(epoch for epoch, _ in every)
        if row["megabatch"] == len(driver.session.history):  # else it is ahead, or has gone back
            whole += self._not_merged(driver.session.ledger)
            for epoch in range(last):
                require(whole[epoch] == ROWS, f"rows of epoch {epoch} were forgotten")
        self._unchecked.append((driver, row))
        self._check_models()

    def _check_models(self) -> None:
        """Check the rows whose merge some worker has committed: it does with what follows."""
        known = [it for it in self._unchecked if it[1]["megabatch"] in self.models]
        self._unchecked = [it for it in self._unchecked if it not in known]
        for driver, row in known:
            parts = {n: [r for _, r in part] for n, part in self._rows_of(row).items()}
            self._check_model(driver, row, parts)
            self._check_metrics(row)

    def _check_metrics(self, row: dict[str, Any]) -> None:
        """An evaluation has each test row once, by the model that was committed."""
        number, metrics = row["megabatch"], row["metrics"]
        if not metrics or number not in self.models:
            return
        counted = metrics["rows"]
        require(counted == sum(TEST), f"evaluation {number} counts {counted} of {sum(TEST)} rows")
        expected = precision(self.models[number]["current"])
        is_it = math.isclose(metrics["P@1"], expected, abs_tol=1e-12)
        require(is_it, f"evaluation {number} is of another model: P@1 {metrics['P@1']:.3g}")

    @staticmethod
    def _not_merged(ledger: Ledger) -> Counter[int]:
        """Return how many rows of each epoch are with workers, or are to be leased again.

        A late worker's rows are merged later; those of a lost one stay if the run is stopped.
        """
        found = Counter[int]()
        for span in chain(ledger.returned, *chain(*ledger.held.values())):
            found[span.epoch] += span.rows
        return found

    def check_epochs(self, epochs: int) -> None:
        """Check that a run that ended with its epochs has merged each of their rows."""
        whole = Counter(epoch for seen in self._seen for epoch, _ in seen)
        require(whole == dict.fromkeys(range(epochs), ROWS), f"epochs of {whole} rows")

    def _rows_of(self, row: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
        """Return the epoch and the number of every row that each worker has trained on."""
        return {
            name: [it for lease in worker["leases"] for span in lease for it in self._places(span)]
            for name, worker in row["workers"].items()
        }

    def _places(self, span: list[int]) -> list[tuple[int, int]]:
        epoch, stream = span[:2]
        streams = self._streams
        first = 0 if len(streams) == 1 else sum(TRAIN[:stream])
        return [
            (epoch, first + int(n)) for n in span_rows(Span(*span), streams[stream], self._seed)
        ]

    def _check_model(
        self, driver: RunDriver, row: dict[str, Any], parts: dict[str, list[int]]
    ) -> None:
        number, strategy = row["megabatch"], driver.session.strategy
        decided = [part for entry in row["trace"] for part in entry if part[0] == "Merge"]
        weights = [worker["weight"] for worker in row["workers"].values()]
        lost = abs(sum(weights) - sum(decided[-1][1].values()))
        require(lost < CLOSE, f"the weights of merge {number} are not the strategy's in sum")
        if not {number - 1, number} <= self.models.keys() or strategy.averages:
            return
        base, model = self.models[number - 1]["current"], self.models[number]["current"]
        momentum = row.get("momentum", 0.0)
        before = self.models.get(number - 2, self.models[number - 1])["current"]
        if strategy.shares_model:
            self._check_shared(number, model - base, parts)
            return
        if momentum and number - 2 not in self.models and number > 1:
            return
        moved = momentum * (base - before)
        if strategy.is_joint:
            self._check_joint(driver, row, (model - base - moved)[:ROWS], parts)
            return
        expected = moved
        for name, part in parts.items():
            replica = base.copy()
            np.add.at(replica, part, 1.0)
            expected = expected + row["workers"][name]["weight"] * replica
        error = float(np.abs(expected - model).max())
        require(
            error <= CLOSE * max(1.0, float(np.abs(model).max())),
            f"merge {number} is not the weighted sum of what its history says (by {error:.3g})",
        )

    def _check_joint(
        self, driver: RunDriver, row: dict[str, Any], moved: Array, parts: dict[str, list[int]]
    ) -> None:
        """Each row of the history counts once, or less where gradients are averaged; no other does.

        A gradient has 1 for each row, and the server, or every replica, applies it at the
        strategy's rate. Adasum adds what local steps changed if no two have the same row.
        """
        number, config = row["megabatch"], driver.config
        trained = np.bincount([it for part in parts.values() for it in part], minlength=ROWS)
        is_local = config.strategy_name == "adasum"
        rate = 1.0 if is_local else next(iter(row["workers"].values()))["lr"]
        is_exact = config.strategy_name == "asynchronous" or config.rule == "sum"
        is_exact |= is_local and int(trained.max()) <= 1
        counts = moved / rate
        is_other = bool(np.any((counts > CLOSE) != (trained > 0)))
        require(not is_other, f"merge {number} holds other rows than its history")
        require(bool(np.all(counts <= trained + CLOSE)), f"merge {number} has rows twice")
        lacks = is_exact and not np.all(counts >= trained - CLOSE)
        require(not lacks, f"merge {number} has rows in part")

    def _check_shared(self, number: int, moved: Array, parts: dict[str, list[int]]) -> None:
        """Each row counts once in a shared model, those of lost leases perhaps once more."""
        trained = np.zeros_like(moved)
        np.add.at(trained, [row for part in parts.values() for row in part], 1.0)
        require(bool(np.all(moved >= trained - CLOSE)), f"merge {number} lacks rows of its history")
        is_exact = bool(np.all(moved <= trained + CLOSE)) or self.cluster.has_lost
        require(is_exact, f"merge {number} has rows twice, though no worker was lost")

    # --------------------------------------------------------------- the record

    def check_directory(self, run_dir: Path, config_text: str) -> None:
        """Check what is found in a directory, whenever somebody looks."""
        text = (run_dir / RUN_FILE).read_text() if (run_dir / RUN_FILE).exists() else None
        if text is None and not checkpoints(run_dir):
            return  # it failed before its first merge, and was about to leave nothing
        require(text == config_text, "the run file is lost or cut")
        lines = b""
        if (run_dir / HISTORY_FILE).exists():
            lines = (run_dir / HISTORY_FILE).read_bytes()
        whole = lines.decode().split("\n")[:-1]
        is_prefix = any(whole == rows[: len(whole)] for rows in (self.rows, *self._before))
        require(is_prefix, "the journal is no prefix of what was published")
        self._check_checkpoints(checkpoints(run_dir))

    def _check_checkpoints(self, found: list[Path]) -> None:
        newest = int(found[-1].stem) if found else 0
        require(newest >= self.stored, f"checkpoint {self.stored} was acknowledged, and is lost")
        for path in found:
            models, session = read_checkpoint(path)
            history = session["history"]
            if self._found_given_up(models, history) is not None:
                continue
            self._require_same(history, path.name)
            if len(history) in self.models:
                is_it = self._is_model(models, self.models[len(history)])
                require(is_it, f"{path.name}: not the model of merge {len(history)}")

    def check_end(self, driver: RunDriver, run_dir: Path) -> None:
        """Check the record and the model of a run that has ended well."""
        session, rows = driver.session, self.rows
        require(len(session.history) == len(rows), "not all rows were published")
        self._require_same(session.history, "the session")
        journal = run_dir / HISTORY_FILE
        found = [json.dumps(row) for row in read_history(journal)] if journal.exists() else []
        require(found == rows, "the journal is not the history")
        if rows and self.audits:
            found = objections(session.history, lambda _: session.strategy)
            require(not found, f"the audit of the record: {found[:1]}")
        if session.generation in self.models:
            arrays, known = read_model(run_dir)[1], self.models[session.generation]
            layout = Layout(driver.data.spec)
            flat = np.zeros(layout.size, np.float32)
            for name, view in layout.views(flat).items():
                view[...] = arrays[name]
            arrays = {"current": flat}
            is_it = self._is_model(arrays, known)
            require(is_it, "the stored model is not that of the last merge")

    def _is_model(self, stored: Mapping[str, Array], known: Model) -> bool:
        """Whether a checkpoint, or the stored model, is a model that was committed."""
        return np.array_equal(stored["current"], known["current"])

    def check_nothing_left(self, run_dir: Path) -> None:
        """Check that a run that was forgotten has left nothing on the workers."""
        for worker in self.cluster.living():
            plugin = worker.plugin
            require(not plugin.queues, f"a lease queue is left on {worker}")
            require(not (plugin.directories or plugin.models), f"{worker} still stores something")
            require(not plugin.fitters, f"{worker} still has rows of trees")
            require(is_idle(plugin.communicator), f"{worker} still communicates")
            require(not worker.comms, f"{worker} has open connections")
            require(not worker.files.is_any_open, f"{worker} has open sockets or pipes")
            require(not worker.running, f"{worker} still has {[it.name for it in worker.running]}")
        for thread in self.cluster.loop.threads:
            process = thread.process
            require(process is None or process.is_dead, f"a thread is left on {process}")
        require(not self.cluster.waiting or _all_released(self.cluster), "tasks wait for a worker")
        require(not is_locked(run_dir), "the directory is still locked")


class TreeTruth(Truth):
    """The account of a run of label trees: rows as published, and trees as they must be."""

    most_tasks = (1, 7)

    def begin(self, driver: RunDriver, checkpoint: str | None) -> None:
        """Begin with a new scheduler."""
        self._read, self._spec = 0, driver.config.model_spec(ROWS, LABELS)
        paths = [] if checkpoint is None else stored_members(checkpoint)
        history = [self._stored_row(path) for path in paths]
        self._require_same(history, "the trees to go on with")
        self._before.append(self.rows)
        self.rows = [json.dumps(row) for row in history]
        self.stored = 0

    def _stored_row(self, path: Path) -> dict[str, Any]:
        """Return the row of a stored tree, which must be the one that follows from the rows."""
        tree, row = read_member(path)
        self._require_tree(tree, row["megabatch"] - 1, path.name)
        return row

    def _require_tree(self, tree: Mapping[str, Array], number: int, what: str) -> None:
        expected = whole_tree(self._spec, self._seed, number)
        same = (np.array_equal(tree[name], array) for name, array in expected.items())
        require(tree.keys() == expected.keys() and all(same), f"{what}: another tree {number}")

    def check(self) -> None:
        """Check what holds between any two events of the scheduler."""
        driver = self.cluster.driver
        if driver is None:
            return
        events = driver.event_log.events
        while self._read < len(events):
            self._published(driver, events[self._read])
            self._read += 1
        self._check_scheduler(driver)

    def _check_row(self, driver: RunDriver, row: dict[str, Any]) -> None:
        check_trees([json.loads(text) for text in self.rows])
        warned = (it["text"] for it in driver.event_log.events if it["kind"] == "warning")
        if not any("is not stored" in text for text in warned):
            self.stored = row["megabatch"]

    def _check_checkpoints(self, found: list[Path]) -> None:
        trees = stored_members(found[0]) if found else []
        require(len(trees) >= self.stored, f"tree {self.stored} was acknowledged, and is lost")
        for path in trees:
            self._stored_row(path)

    def check_end(self, driver: RunDriver, run_dir: Path) -> None:
        """Check the record and the model of a run that has ended well."""
        history, rows = driver.session.history, self.rows
        require(len(history) == len(rows), "not all rows were published")
        self._require_same(history, "the run")
        journal = run_dir / HISTORY_FILE
        found = [json.dumps(row) for row in read_history(journal)] if journal.exists() else []
        require(found == rows, "the journal is not the history")
        arrays = read_model(run_dir)[1]
        require(len(arrays) == len(rows) * len(ARRAYS), "the model has other trees")
        for number in range(len(rows)):
            tree = {name: arrays[f"tree{number}.{name}"] for name in ARRAYS}
            self._require_tree(tree, number, "the stored model")


def _all_released(cluster: Cluster) -> bool:
    return all(task.is_released for task in cluster.waiting)
