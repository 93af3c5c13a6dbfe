"""Simulating a run: what a user calls, from Python or from the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig
from daskxml.errors import ConfigError
from daskxml.loggers import Logger, listening
from daskxml.loggers.listening import OnEvent, OnMegabatch
from daskxml.simulator.changes import Arrival, Change
from daskxml.simulator.cost import Network, v100_cost
from daskxml.simulator.devices import check_pools
from daskxml.simulator.rows import Rows
from daskxml.simulator.simulation import Costs, Simulation
from daskxml.training.run import Run, resolve_run
from daskxml.training.run_dir import RunDir

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
) -> Run:
    """Train a model as a run file says, on workers whose time is virtual.

    Rows, arithmetic, strategy, replicas and merges are those of `daskxml.train`, and so are
    parameters and errors that are not named here. The same seed gives the same bytes.

    Parameters
    ----------
    speeds
        Of every worker: batches take their cost over it. Named 0, 1, ... unless a mapping.
    cost, network
        Seconds of a batch at speed 1, or a function that tells it of the model; of messages.
    pools, pool_cost
        Threads of the workers that are pools, by name, also virtual (`daskxml.simulator.worker`);
        and `cost` of their batches if it is another (`cost_by_epochs` finds it from a ratio).
    rows, out
        What `read_rows` has read, for several runs; where ``simulation.json`` comes as well.
    changes
        `Loss` and `Arrival`, at their times since this call's beginning.

    Raises
    ------
    ClusterError
        If every worker is lost and none comes.

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
    threads = check_pools(pools or {}, [*named, *_coming(changes)], resolved)
    place = RunDir.open(out, resume)
    with place, listening(resolved, place, on_event, on_megabatch, loggers) as tell:
        simulation = Simulation(resolved, named, place, changes, [tell])
        simulation.read(rows, train, test)
        simulation.equip(cost, network or Network(), threads, pool_cost)
        return simulation.run()


def _coming(changes: Iterable[Change]) -> list[str]:
    return [change.worker for change in changes if isinstance(change, Arrival)]


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
