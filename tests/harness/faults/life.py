"""Hours of one scheduler and its workers, with run after run, and what these leave behind.

Each run has the strategy and the faults of a seed of its own, but for the death of the scheduler;
one that is stopped, or whose user dies, is not resumed: the next one begins in another directory.
After each of them nothing of it may be left, and what the processes hold is counted.
"""

from __future__ import annotations

import gc
import shutil
import sys
from collections import Counter, deque
from dataclasses import replace
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from daskxml.api.on_cluster import launch
from daskxml.api.train import train
from harness.faults.schedule import SHARING, Case, draw_case
from harness.faults.simulation import LONGEST_START_S, Simulation, config_of, simulate

ENDING = ("power", "scheduler")  # faults that end all processes
MOST_WORKERS = 4
SHARED = (type, FunctionType, ModuleType)  # by all processes


class Life(Simulation):
    """Run after run on one scheduler.

    Parameters
    ----------
    held
        A row for each run, to which it adds: the hour, how many runs have ended, by reason, and
        how many objects and bytes the plugins hold: the scheduler's, and the largest of workers.
    hours
        Of virtual time.
    """

    def __init__(self, held: list[dict[str, Any]], hours: float, case: Case, *args: Any) -> None:
        super().__init__(case, *args)
        self._held, self._hours = held, hours
        self.loop.longest_s = 3600.0 * hours + 2 * LONGEST_START_S
        self.ended = Counter[str]()

    async def run(self) -> None:
        """Let runs come and end until the time is over."""
        cluster, first = self.cluster, self.case.seed
        await cluster.start_scheduler(self._begin)
        while self.loop.now_s < 3600.0 * self._hours:
            self._draw(first + self.starts)
            self.starts += 1
            self._new_directory()
            while len(cluster.living()) < self.case.workers:
                self._join()
            cluster.driver, self.visitors = None, []
            work = partial(train if self.case.follows else launch, self.config, out=self.run_dir)
            self.owner = self._user(work)
            await self._until_over(cluster.scheduler)
            if self._problem is not None:
                raise self._problem
            self.ended[await self._end()] += 1
            self._clean_up()
            self._count()

    def _draw(self, seed: int) -> None:
        """Take the next run's settings and faults, which follow what has happened so far."""
        drawn = draw_case(seed)
        fixed = {name: getattr(self.case, name) for name in ("slots", "machines", "transport")}
        case = self.case = replace(drawn, is_replicated=True, pools=0, **fixed)
        faults = [it for it in case.faults if it.kind.removesuffix(" here") not in ENDING]
        self._faults = deque(replace(it, at=it.at + self.steps) for it in faults)
        self._struck.clear()
        self._armed.clear()
        self.config = config_of(case)

    def _clean_up(self) -> None:
        """End what is left of faults, and workers that are too many; remove the directory."""
        cluster = self.cluster
        self.disk.is_full, self.disk.flush_s = False, 0.0
        cluster.slow, cluster.cuts, cluster.early = {}, {}, {}
        for worker in cluster.living()[MOST_WORKERS:]:
            cluster.die(worker)
            cluster.lose(worker)
        cluster.everyone[:] = [worker for worker in cluster.everyone if not worker.is_dead]
        with self.disk.idle():
            shutil.rmtree(self.run_dir, ignore_errors=True)
        self.loop.forget_done()

    def _count(self) -> None:
        objects, size = reached(self.cluster.scheduler.plugin)
        row = {"hour": self.loop.now_s / 3600.0, "ended": dict(self.ended)}
        row |= {"scheduler objects": objects, "scheduler KiB": size / 1024}
        each = [reached(worker.plugin) for worker in self.cluster.living()]
        objects, size = map(max, zip(*each, strict=True)) if each else (0, 0)
        self._held.append(row | {"worker objects": objects, "worker KiB": size / 1024})


def reached(root: Any) -> tuple[int, int]:
    """Return how many objects, and bytes, something refers to, without code and the harness.

    Examples
    --------
    >>> few, many = reached([1.5, 2.5]), reached([1.5, 2.5, [3.5]])
    >>> many[0] - few[0], many[1] > few[1]
    (2, True)
    """
    found, left = {id(root): root}, [root]
    while left:
        for it in gc.get_referents(left.pop()):
            is_other = isinstance(it, SHARED) or type(it).__module__.startswith("harness")
            if id(it) not in found and not is_other:
                found[id(it)] = it
                left.append(it)
    return len(found), sum(map(sys.getsizeof, found.values()))


def live(hours: float, seed: int = 0) -> tuple[str, list[dict[str, Any]]]:
    """Live for some virtual hours.

    Returns
    -------
    :
        What was violated, "" for nothing, and the rows of a `Life`.
    """
    held: list[dict[str, Any]] = []
    case = next(it for it in map(draw_case, range(seed, sys.maxsize)) if it.strategy in SHARING)
    return simulate(case, partial(Life, held, hours)).problem, held
