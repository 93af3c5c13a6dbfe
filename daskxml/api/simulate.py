"""Simulation: a run on workers whose time is virtual."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.api.run import Run, resolve_run
from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError
from daskxml.local.cost import Costs, Devices, Network, check_pools, v100_cost
from daskxml.local.driver import Arrival, Change, check_changes
from daskxml.local.rows import Rows, load_rows
from daskxml.local.run import LocalRun, read_stored
from daskxml.local.tree_runs import LocalTreeRun
from daskxml.observe.callbacks import OnEvent, OnMegabatch, run_callbacks
from daskxml.observe.loggers import Logger
from daskxml.records.run_dir import RunDir
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
    resolved = resolve_run(config, train, test, overrides)
    late = [change.worker for change in changes if isinstance(change, Arrival)]
    check_changes(named, changes)
    threads = check_pools(pools or {}, [*named, *late], resolved)
    place = RunDir.open(out, resume)
    callbacks = run_callbacks(resolved, place, on_event, on_megabatch, loggers, raises=raises)
    with place, callbacks as publish:
        publish({"kind": "status", "state": "loading"})
        kind = LocalRun if resolved.has_strategy else LocalTreeRun
        stored = None if kind is LocalTreeRun else read_stored(place)
        placed = DataLayout(**stored[0]["placed"]) if stored else None
        resolved, rows, names = load_rows(
            resolved, len(named), train, test, rows=rows, placed=placed
        )
        devices = Devices.of(rows.model_spec(resolved), cost, network, threads, pool_cost)
        run = kind(
            resolved, rows, publish, names=names, devices=devices, speeds=named, place=place,
            stored=stored, changes=changes,
        )  # fmt: skip
        model, reason = run.run()
        return Run(model, run.history, place.path, reason)


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
