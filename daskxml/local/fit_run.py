"""A run in this process that fits its model in tasks: on threads, or on virtual clocks.

Both compute the same functions of the same rows, so the model is the same, bit for bit. On virtual
clocks a piece takes what its products cost, divided by its worker's speed; whoever is free takes
the next piece, and what a lost worker had is fitted again.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.signals import Request, first_signal_asks
from daskxml.local.cost import Devices, jitter_factor, whole_ticks
from daskxml.local.driver import Change
from daskxml.local.run import NAME, LocalRun
from daskxml.models.fitting import FitSettings, Fitter, Slot
from daskxml.models.protocol import FittedKind, joined_arrays, split_arrays
from daskxml.models.trained import Model
from daskxml.records.checkpoint import read_member, store_member, stored_members
from daskxml.session.fit_run import FitData, FitRun, Steps
from daskxml.session.row_loading import Rows
from daskxml.session.task_pool import PIECE, Task, TaskPool

_LOOK_S = 0.2  # between two looks whether Ctrl-C was pressed
_PRODUCTS_S = 5e8  # of weights with features, each used twice, on one core


class Threads(TaskPool):
    """The threads of an executor, one of which takes the turns of a GPU.

    ``request`` is to be made while `wait` waits, which it ends.
    """

    def __init__(self, fitter: Fitter, executor: ThreadPoolExecutor, request: Request) -> None:
        self.here, self.on_gpus = lambda: fitter, fitter.slot.device == "cuda"
        super().__init__({NAME: 1 if self.on_gpus else fitter.slot.threads})
        self._executor, self._request = executor, request
        self._tasks: dict[Future[tuple[float, Any]], Task] = {}

    @property
    def now_s(self) -> float:
        """Seconds of the machine's steady clock."""
        return time.monotonic()

    def choose(self, task: Task) -> str | None:
        """Return the one worker, if a thread is free."""
        return NAME if len(self.under_way) < self.slots[NAME] else None

    def begin(self, task: Task) -> None:
        """Start a task on a thread."""
        self._tasks[self._executor.submit(self._compute, task)] = task

    def _compute(self, task: Task) -> tuple[float, Any]:
        begun_s = time.perf_counter()
        task.result = task.function(*self.resolved(task.args))
        return time.perf_counter() - begun_s, task.result

    def wait(self, until_s: float) -> None:
        """Wait for a result, until this time at most."""
        ended: set[Future[tuple[float, Any]]] = set()
        while not ended and self.now_s < until_s and not self._request.is_made:
            left_s = min(_LOOK_S, until_s - self.now_s)
            ended = wait(self._tasks, max(0.0, left_s), FIRST_COMPLETED).done
        for future in ended:
            self.done(self._tasks.pop(future), NAME, *future.result())


class Clocks(TaskPool):
    """Workers of some speeds on virtual clocks; what is neither fitted nor ranked occupies nobody.

    Parameters
    ----------
    fitter, rows
        What computes, and the run's.
    speeds, devices, changes
        Of the simulation.
    """

    now_s = 0.0

    def __init__(
        self, fitter: Fitter, rows: Rows, speeds: Mapping[str, float], devices: Devices,
        changes: Iterable[Change],
    ) -> None:  # fmt: skip
        assert devices.cost is not None
        super().__init__(dict.fromkeys(speeds, 1))
        self.here, self.on_gpus = lambda: fitter, fitter.slot.device == "cuda"
        config, self._cost, self._speeds = fitter.settings.config, devices.cost, dict(speeds)
        self._seed = config.run.seed
        self._nonzeros = max(1, rows.facts.nonzeros // rows.facts.rows)  # of a row
        for change in changes:
            raise ConfigError(
                f"worker {change.worker} is lost, arrives or freezes, which {config.kind.title} do "
                "not simulate: leave that out"
            )
        self._numbers = itertools.count()
        self._message_s = whole_ticks(devices.network.message_s)
        self._ends: list[tuple[float, int, Task]] = []

    def choose(self, task: Task) -> str | None:
        """Return a worker that is free; "" for what occupies nobody."""
        if task.what not in (PIECE, "eval"):
            return ""
        busy = {each.worker for each in self.under_way}
        return next((name for name in self.slots if name not in busy), None)

    def begin(self, task: Task) -> None:
        """Begin a task; what it computes is computed when it ends."""
        task.busy_s = whole_ticks(self._takes_s(task))
        end_s = self.now_s + task.busy_s + 2 * self._message_s
        heapq.heappush(self._ends, (end_s, next(self._numbers), task))

    def _takes_s(self, task: Task) -> float:
        """Return what a task costs: a piece as much as its products."""
        cost, speed = self._cost, self._speeds.get(task.worker, 1.0)
        match task.what, task.args:
            case "piece", (*_, number, piece):
                products = task.work * self._nonzeros
                place = self._seed, task.worker, number, *piece.key
                factor = jitter_factor(cost.jitter, *place)
                return products / _PRODUCTS_S / speed * factor
            case "eval", (*_, start, stop):
                rows = stop - start
                return cost.batch_s(rows, rows * self._nonzeros) * cost.evaluation_share / speed
            case "save", (_, _, member, _):
                return sum(int(array.nbytes) for array in member.values()) / cost.storage_bytes_s
        return 0.0

    def wait(self, until_s: float) -> None:
        """Advance to the next result, until this time at most."""
        end_s = self._ends[0][0] if self._ends else math.inf
        self.now_s = max(self.now_s, min(end_s, until_s))
        if end_s <= until_s:
            task = heapq.heappop(self._ends)[-1]
            if task in self.under_way:  # it was not dropped
                task.result = task.function(*self.resolved(task.args))
                self.done(task, task.worker, task.busy_s, task.result)


class LocalFitRun(LocalRun):
    """One run."""

    def run(self) -> tuple[Model, str]:
        """Run to the end; return the model, and why the run ended.

        Raises
        ------
        ModelError
            If the model to start from is another than what is added to it.
        TrainingError
            If the run ends before there is a member of the model.
        """
        held, checkpoint, path = self._held, self._place.checkpoint, self._place.path
        self.spec, prepared = prepare(self.rows, self.config)
        settings = FitSettings(self.spec, self.rows.training_rows, self.config)
        start, kind = self._start, settings.config.kind
        before = [] if start is None else members_before(start, self.spec, kind)
        if start is not None:
            self.spec = replace(self.spec, **{n: getattr(start.spec, n) for n in kind.kept})
            settings = replace(settings, spec=self.spec)
        tests = held.test.parts, held.test.rows
        data = FitData(held.train.parts[0], held.label_counts, prepared, *tests)
        store = None if path is None else (store_member, str(path))
        cluster = self.config.cluster
        fitter = kind.fitter(settings, Slot(*cluster.here, cluster.memory_bytes))
        # If it is written somewhere, or in virtual time, it ends with a member at the first Ctrl-C.
        is_soft = self._is_virtual or path is not None
        asks = first_signal_asks() if is_soft else contextlib.nullcontext(Request())
        with ThreadPoolExecutor(fitter.slot.threads, "daskxml-fit") as executor, asks as request:
            if self._is_virtual:
                given = self._held, self._speeds, self._devices, self._changes
                pool: Threads | Clocks = Clocks(fitter, *given)
            else:
                pool = Threads(fitter, executor, request)
            publish = partial(self._publish_at, pool)
            run = FitRun(settings, data, pool, publish, store, before)
            if checkpoint is not None:
                stored = stored_members(checkpoint)
                self._follow(run, pool, request, run.load(stored, read_member))
            self.history = [*run.history]
            self._begin()
            self._continue_directory()
            self._follow(run, pool, request, run.fit())
            del pool.changed  # it refers to the run: rows would stay until a collection
        arrays = joined_arrays(run.model_members(), run.member)
        header, counts = self._seen(self._header(run.stop_reason, run.best), held.label_counts)
        model = self._written(header, arrays, counts)
        self._publish("ended", reason=run.stop_reason, run_dir=self._place.path_for_workers)
        return model, run.stop_reason

    def _follow(self, run: FitRun, pool: Threads | Clocks, request: Request, steps: Steps) -> None:
        """Execute tasks until no step is left."""
        for until_s in steps:
            pool.fill()
            pool.wait(until_s)
            if request.is_made:
                request.is_made = False
                run.stop("interrupt")
                what = f"the run ends with the {run.member} under way"
                self._warn(f"{what}; Ctrl-C again ends it at once")


def prepare(rows: Rows, config: RunConfig) -> tuple[Any, Any]:
    """Return the model and what else fitting takes of the rows; see `TrainedKind.prepare`."""
    _, threads = config.cluster.here
    blocks = [
        (part, part.rows * place // threads, part.rows * (place + 1) // threads)
        for part in rows.train.parts
        for place in range(threads)
    ]
    with ThreadPoolExecutor(threads) as pool:

        def submit(name: str, function: Callable[..., Any], *args: Any) -> Future[Any]:
            return pool.submit(lambda: function(*map(_value, args)))  # all it waits for came before

        given = rows.label_counts, rows.model_spec(config), config.run.seed
        found = config.kind.prepare(rows.train.parts, *given, blocks, submit, threads)
        spec, prepared = map(_value, found)
    return spec, prepared


def _value(given: Any) -> Any:
    """Return the results of futures in place of these."""
    if isinstance(given, list):
        return [_value(each) for each in given]
    return given.result() if isinstance(given, Future) else given


def members_before(start: Model, spec: Any, kind: FittedKind[Any]) -> list[dict[str, Any]]:
    """Return the arrays of each member of a model to which others are added.

    Raises
    ------
    ModelError
        If it has other labels, or its members other shapes.
    """
    for name in kind.alike:
        had, has = getattr(start.spec, name, None), getattr(spec, name)
        if had != has:
            problem = f"the model to start from has {name} = {had!r}, not {has!r}"
            added = f"{kind.title} are added to those alike; fit them all again"
            raise ModelError(f"{problem}: {added}")
    return split_arrays(start.parameters, kind.member)
