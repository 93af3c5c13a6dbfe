"""Simulation: a run on workers whose time is virtual."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.api.job import Job, matrices
from daskxml.api.run import Run
from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError
from daskxml.local.cost import Costs, Devices, Network, check_pools, v100_cost
from daskxml.local.driver import Arrival, Change, check_changes
from daskxml.local.rows import Rows, load_rows
from daskxml.local.run import LocalRun, read_stored
from daskxml.local.tree_runs import LocalTreeRun
from daskxml.observe.callbacks import OnEvent, OnMegabatch
from daskxml.observe.loggers import Logger
from daskxml.session.setup import DataLayout

Speeds = Sequence[float] | Mapping[str, float]


def simulate(
    config: str | Path | Mapping[str, Any] | RunConfig,
    speeds: Speeds,
    *,
    cost: Costs = v100_cost,
    network: Network | None = None,
    pools: Mapping[str, int] | None = None,
    pool_cost: Costs | None = None,
    train: Any = None,
    test: Any = None,
    rows: Rows | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    changes: Iterable[Change] = (),
    overrides: Iterable[str] | Mapping[str, Any] = (),
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    loggers: Iterable[str | Logger] = (),
    raises: Iterable[type[BaseException]] = (),
) -> Run:
    """Train a model as a run file says, on workers whose time is virtual.

    Rows, arithmetic, strategy, replicas and merges are those of `daskxml.train`, and so are
    parameters and errors that are not named here. The same seed gives the same bytes.

    Parameters
    ----------
    speeds
        Speed of each worker, by which the cost of its batches is divided. Workers are named 0, 1,
        ... unless this is a mapping.
    cost, network
        Seconds of a batch at speed 1, or a function of the model that returns them; those of
        messages.
    pools, pool_cost
        Threads of the workers that are pools, by name, also virtual (`daskxml.local.worker`);
        and `cost` of their batches if it is another (`cost_by_epochs` finds it from a ratio).
    rows, out
        The result of `read_rows`, to be shared by several runs; the run's directory, which also
        gets ``simulation.json``.
    changes
        `Loss` and `Arrival` of workers, at times since the beginning of this call. A worker that
        arrives has a name of its own.

    Raises
    ------
    ConfigError
        Also if a change names a worker that does not exist, or one that arrives twice.
    ClusterError
        If every worker is lost and none arrives.

    Examples
    --------
    >>> import daskxml, numpy as np
    >>> run = simulate({"training": {"epochs": 2}, "strategy": {"megabatch_batches": 1}},
    ...                speeds=[1.0, 0.5], train=daskxml.Matrices(np.eye(512), np.eye(512)))
    >>> [row["rows"] for row in run.history]
    [256, 512, 768, 1024]
    """
    named, changes = name_speeds(speeds), tuple(changes)
    check_changes(named, changes)
    job = Job.of(
        config, train, test, overrides, out=out, resume=resume, on_event=on_event,
        on_megabatch=on_megabatch, loggers=loggers, raises=raises, find=_found(rows),
    )  # fmt: skip
    late = [change.worker for change in changes if isinstance(change, Arrival)]
    threads = check_pools(pools or {}, [*named, *late], job.config)
    return job.run(Virtual(named, cost, network, threads, pool_cost, changes))


def _found(rows: Rows | None) -> Callable[[Any, str], Any]:
    """Return what finds rows that are no files: those that were read before, if there are such."""
    if rows is None:
        return matrices
    return lambda given, name: rows if name == "train" else None


@dataclass(frozen=True)
class Virtual:
    """Workers on virtual clocks; see `simulate`."""

    speeds: Mapping[str, float]
    cost: Costs
    network: Network | None
    pools: Mapping[str, int]
    pool_cost: Costs | None
    changes: tuple[Change, ...]

    def run(self, job: Job, publish: OnEvent) -> Run:
        """Do a job."""
        publish({"kind": "status", "state": "loading"})
        config, directory = job.config, job.directory
        stored = read_stored(directory) if config.has_strategy else None
        placed = DataLayout(**stored[0]["placed"]) if stored else None
        config, rows, names = load_rows(config, len(self.speeds), **job.given, placed=placed)
        devices = Devices.of(
            rows.model_spec(config), self.cost, self.network, self.pools, self.pool_cost
        )
        kind = LocalRun if config.has_strategy else LocalTreeRun
        run = kind(
            config, rows, publish, names=names, devices=devices, speeds=self.speeds,
            place=directory, stored=stored, changes=self.changes,
        )  # fmt: skip
        model, reason = run.run()
        return Run(model, run.history, directory.path, reason)


def name_speeds(speeds: Speeds) -> dict[str, float]:
    """Return workers' speeds by name.

    Raises
    ------
    ConfigError
        If there is none, or one is not above 0.

    Examples
    --------
    >>> name_speeds([1, 0.5])
    {'0': 1.0, '1': 0.5}
    """
    numbered = dict(enumerate(speeds)) if isinstance(speeds, Sequence) else speeds
    if not numbered:
        raise ConfigError("no workers: give at least one speed")
    named = {str(name): float(speed) for name, speed in numbered.items()}
    for name, speed in named.items():
        if not 0.0 < speed < math.inf:
            raise ConfigError(f"worker {name}: speed = {speed}: must be above 0")
    return named
