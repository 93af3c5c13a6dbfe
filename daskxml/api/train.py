"""Training: in this process, or on a Dask cluster, which is loaded where it is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskxml.api.in_process import InProcess
from daskxml.api.run import Config, Job, Matrices, Run, awaitable, in_memory, split_given
from daskxml.config import DEFAULT_RUN_FILE
from daskxml.config.sections import ClusterSection
from daskxml.core.errors import ConfigError, needing
from daskxml.core.hardware import usable_cores, usable_gpus
from daskxml.observe.callbacks import OnEvent, OnMegabatch
from daskxml.observe.terminal import notebook_progress

if TYPE_CHECKING:
    from distributed import Client


@awaitable
def train(
    config: Config | Any = DEFAULT_RUN_FILE,
    *rows: Any,
    client: Client | None = None,
    train: Any | None = None,
    test: Any | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    raises: Iterable[type[BaseException]] = (),
    dashboard: bool = False,
) -> Run:
    """Train a model as a run file says, in this process or on any Dask cluster.

    Parameters
    ----------
    config
        A run file, the name of one that comes with daskxml, or a dictionary of its sections; by
        default ``"best"``, four label trees, also where the training rows come first.
    rows
        Training rows, as for ``train``: ``X, Y``, or files.
    client, scheduler, workers
        A Dask client (if it is asynchronous, await the call), or the address of a running
        scheduler; or a number of processes, of which the call creates a local cluster, and closes
        it at the end; 0 trains in this process, on one worker or pool. Without any of them label
        trees are fitted on the threads of this process if the run file asks for no cluster and
        there is no GPU. So are networks on fewer than four cores; on more they get a local cluster,
        with a worker for every two.
    train, test
        In the run file's place: files, globs or URLs that the workers can read; ``(X, Y)`` in
        memory or of Dask arrays, or `Matrices` of them; a Dask data frame with the columns of a
        table (`daskxml.data.tables`); a list of delayed values or futures of ``(X, Y)``; or rows
        of a `daskxml.Pipeline`.
    out
        Directory of the run, visible to client and workers; None: all in memory, no checkpoints.
    resume
        Directory of a run to resume from its last checkpoint.
    overrides
        ``"section.key=value"`` texts, or a mapping; they win over the run file.
    on_event, on_megabatch
        Called during the run: see `daskxml.observe.callbacks`. If a function returns
        `daskxml.STOP`, the run ends at the next merge.
    dashboard
        Whether a local cluster, if there is one, has Dask's dashboard, at port 8787 if that is
        free.
    raises
        Exceptions in ``on_megabatch`` that end the run at once and are raised here, such as
        ``optuna.TrialPruned``; others are warnings.

    Raises
    ------
    ConfigError, InputError, ModelError, ClusterError, TrainingError
        With a message of one line: what is wrong, where, and what to do.

    Examples
    --------
    ::

        run = daskxml.train(X, Y)
        run.model.predict(X, top_k=5)
    """
    if workers is not None and (client is not None or scheduler is not None):
        raise ConfigError("give workers=, for a local cluster, or another cluster, not both")
    named, rows = split_given((config, *rows))
    if rows and train is not None:
        raise ConfigError("training rows are given twice: by position and as train=")
    if rows:
        train = rows[0] if len(rows) == 1 else rows
    job = Job.of(
        DEFAULT_RUN_FILE if named == "" else named, train=train, test=test, out=out,
        overrides=overrides, resume=resume, find=in_memory if workers == 0 else _found,
        settings=None if workers is None else {"cluster.workers": workers},
        on_event=on_event or notebook_progress(), on_megabatch=on_megabatch, raises=raises,
    )  # fmt: skip
    if workers == 0 and job.config.cluster.pools:
        raise ConfigError("pools need a cluster: leave workers=0 out, or give [cluster] pools = 0")
    if workers == 0 or (client is None and scheduler is None and not needs_cluster(job)):
        return job.run(InProcess())
    try:
        from daskxml.api.on_cluster import Cluster
    except ModuleNotFoundError as error:
        raise needing("training on a cluster", error) from error
    return job.run(Cluster(client, scheduler, dashboard))


def _found(rows: Any, name: str) -> Any:
    """Return rows that are no files; None for files."""
    each = rows if isinstance(rows, list | tuple) else [rows]
    is_plain = all(isinstance(one, str | Path | Matrices | None) for one in each)
    if is_plain and not hasattr(getattr(rows, "X", None), "__dask_graph__"):
        return in_memory(rows, name)
    try:
        from daskxml.api.collections import find_rows
    except ModuleNotFoundError:  # no Dask: nothing is on a cluster
        return in_memory(rows, name)
    return find_rows(rows, name)


def needs_cluster(job: Job) -> bool:
    """Whether a job is not to be done in this process, where nobody has named a cluster."""
    cluster = dataclasses.replace(job.config.cluster, threads=0, device="auto")
    cores = usable_cores()
    return (
        (job.config.has_strategy and ClusterSection().workers_on(cores) > 1)
        or cluster != ClusterSection()
        or not all(isinstance(rows, Matrices) for rows in job.given.values())
        or job.config.cluster.device == "cuda"
        or (job.config.cluster.device == "auto" and bool(usable_gpus()))
    )
