"""Training in this process: one worker in real time, or many whose time is virtual."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from daskxml.api.run import Config, Job, JobOptions, Run
from daskxml.config import DEFAULT_RUN_FILE
from daskxml.core.errors import ConfigError
from daskxml.data.reading import checksum
from daskxml.kernels.registry import TEXT, telling_of_compilation
from daskxml.local.cost import Costs, Devices, Network, check_pools, v100_cost
from daskxml.local.driver import Arrival, Change, check_changes
from daskxml.local.fit_run import LocalFitRun
from daskxml.local.rows import load_rows
from daskxml.local.run import NAME, LocalRun, read_stored
from daskxml.models.trained import Model
from daskxml.observe.callbacks import OnEvent
from daskxml.records.run_dir import check_rows
from daskxml.session.row_loading import DataLayout

Speeds = Sequence[float] | Mapping[str, float]


def train_here(
    config: Config = DEFAULT_RUN_FILE, *, start: Model | None = None, **options: Unpack[JobOptions]
) -> Run:
    """Train a model as a run file says, in this process, with one worker.

    Parameters and errors that are not named here are those of `daskxml.train`. The run has no
    directory and no checkpoints; Ctrl-C interrupts it.

    Parameters
    ----------
    start
        The model to continue from: rows may have more features and labels than it, after its own.

    Examples
    --------
    >>> import daskxml, numpy as np
    >>> rows = daskxml.Matrices(np.eye(64), np.eye(64))
    >>> run = train_here({"training": {"epochs": 2}}, train=rows)
    >>> run.reason, run.model.spec.labels
    ('epochs', 64)
    """
    return Job.of(config, **options).run(InProcess(start=start))


def simulate(
    config: Config = DEFAULT_RUN_FILE,
    speeds: Speeds = (),
    *,
    cost: Costs = v100_cost,
    network: Network | None = None,
    pools: Mapping[str, int] | None = None,
    pool_cost: Costs | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    changes: Iterable[Change] = (),
    **options: Unpack[JobOptions],
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
    train
        Also what `daskxml.local.read_rows` returns, to be shared by several runs.
    out
        The run's directory, which also gets ``simulation.json``.
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
    job = Job.of(config, out=out, resume=resume, **options)
    late = [change.worker for change in changes if isinstance(change, Arrival)]
    threads = check_pools(pools or {}, [*named, *late], job.config)
    if network and network.machine_workers and job.config.make_strategy().shares_model:
        problem = "has one model, in the memory of one machine: leave machine_workers at 0"
        raise ConfigError(f"[strategy] name = {job.config.strategy_name!r} {problem}")

    def devices(spec: Any) -> Devices:
        found, of_pools = (each(spec) if callable(each) else each for each in (cost, pool_cost))
        return Devices(cost=found, network=network or Network(), pools=threads, pool_cost=of_pools)

    return job.run(InProcess(named, devices, changes))


@dataclass(frozen=True)
class InProcess:
    """This process.

    Attributes
    ----------
    speeds
        Of the workers, by name.
    devices
        What the work of a model costs on virtual clocks; None: one worker in real time.
    changes
        Workers that are lost or arrive.
    start
        The model to continue from, in real time.
    """

    speeds: Mapping[str, float] = field(default_factory=lambda: {NAME: 1.0})
    devices: Callable[[Any], Devices] | None = None
    changes: tuple[Change, ...] = ()
    start: Model | None = None

    def run(self, job: Job, publish: OnEvent) -> Run:
        """Do a job."""
        with telling_of_compilation(lambda: publish({"kind": "compiling", "text": TEXT})):
            publish({"kind": "status", "state": "loading"})
            stored = read_stored(job.directory) if job.config.has_strategy else None
            placed = DataLayout(**stored[0]["placed"]) if stored else None
            config, rows, names = load_rows(
                job.config, len(self.speeds), **job.given, placed=placed
            )
            if (path := job.directory.path) is not None:
                job.directory.rows = [*map(checksum, rows.train.parts)]
                check_rows(path, job.directory.rows)
            kind = LocalRun if config.has_strategy else LocalFitRun
            run = kind(
                config, rows, publish, self.start, names, speeds=self.speeds, stored=stored,
                devices=self.devices and self.devices(rows.model_spec(config)),
                place=job.directory, changes=self.changes,
            )  # fmt: skip
            model, reason = run.run()
            return Run(model, run.history, job.directory.path, reason)


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
