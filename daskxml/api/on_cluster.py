"""A Dask cluster as a place to train: start a run there, and follow it or leave it there."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from daskxml.api.collections import Given, Scattered, find_rows, place_given
from daskxml.api.run import Config, Job, Run, awaitable
from daskxml.api.runs import RunFollower, forget, open_runs
from daskxml.api.stages import Rows, RowStages
from daskxml.cluster.connection import connection, submit
from daskxml.config import DEFAULT_RUN_FILE, RunConfig
from daskxml.core.errors import ConfigError
from daskxml.data.blocks import check_files
from daskxml.data.formats import format_of
from daskxml.observe.callbacks import OnEvent, ignore, warner
from daskxml.session.commands import INTERRUPTED
from daskxml.session.documents import has_texts


@dataclass(frozen=True)
class Cluster:
    """A Dask cluster: a client's, a scheduler's, or a local one that ends with the job.

    The local one has a dashboard if ``dashboard`` says so.
    """

    client: Client | None = None
    scheduler: str | None = None
    dashboard: bool = False

    def run(self, job: Job, publish: OnEvent) -> Run:
        """Do a job, and follow it to its end.

        Ctrl-C makes the run end at a merge, with a checkpoint; a second one ends it at once, and so
        does the first while the data is loading.
        """
        if self.client is None and self.scheduler is None:
            check_files(job.files)  # workers of other clusters may see other files
            publish({"kind": "status", "state": "starting local workers"})
        with self._started(job, publish) as (follower, _):
            interrupts = 0
            while True:
                try:
                    return follower.follow()
                except KeyboardInterrupt:
                    interrupts += 1
                    if interrupts == 1:  # it may have started, and merged, since the last answer
                        follower.read_now()
                    if interrupts > 1 or not follower.has_started:
                        raise
                    follower.call("daskxml_stop", reason="interrupt")
                    follower.on_event({"kind": "warning", "text": INTERRUPTED})

    def launch(self, job: Job, publish: OnEvent) -> str:
        """Begin a job, and leave it once its workers and its directory have been checked.

        Rows that are no files must have been read by the workers before. Return the run's name.
        """
        with job.directory, self._started(job, publish, is_detached=True) as (follower, placed):
            follower.leave_directory()
            while not (follower.has_started or (follower.state == "loading" and not placed)):
                follower.read()
                follower.raise_failure()
            follower.call("daskxml_detach")
            return follower.run

    @contextlib.contextmanager
    def _started(
        self, job: Job, publish: OnEvent, is_detached: bool = False
    ) -> Iterator[tuple[RunFollower, Scattered]]:
        """Yield what follows the job's run, and the rows that were put on the workers for it.

        The run is forgotten afterwards, unless it is detached and there was no error.
        """
        config, section, warn = job.config, job.config.cluster, warner(publish)
        if config.needs_cpu and section.device == "auto":
            section = dataclasses.replace(section, device="cpu")
        with connection(self.client, self.scheduler, section, warn, self.dashboard) as client:
            open_runs(client)
            given = job.given
            if _has_texts(client, config, list(given)):
                given = RowStages(client, publish).vectorized_files(config)
            placed = place_given(client, given, config)
            publish = _releasing(publish, given, placed)
            follower = RunFollower(client, _new_name(), publish, job.directory, config)
            with contextlib.ExitStack() as stack:
                stack.callback(forget, client, follower.run)
                keys = {name: [part.key for part in parts] for name, parts in placed.items()}
                stages = [rows.record for rows in given.values() if isinstance(rows, Rows)]
                follower.start(keys, [*filter(None, stages)], is_detached)
                yield follower, placed
                if is_detached:
                    stack.pop_all()


def _has_texts(client: Client, config: RunConfig, given: Sequence[str]) -> bool:
    """Whether training files, tables as a worker sees them, hold documents."""
    if "train" in given or format_of(config.data.train[0], config.data.format) == "text":
        return has_texts(config, given)
    return submit(client, has_texts, config, given).result()


@awaitable
def launch(
    config: Config = DEFAULT_RUN_FILE,
    *,
    client: Client | None = None,
    train: Any | None = None,
    test: Any | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    scheduler: str | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    on_event: OnEvent | None = None,
) -> str:
    """Start a run on your cluster, and leave it there; return its name.

    `daskxml.attach` returns what follows it or ends it. Without ``out`` two workers keep its model
    until the run is forgotten or the scheduler ends. Parameters and errors are those of `train`.
    The call returns once the workers and the directory have been checked, and, where they are no
    files, once the workers have read the rows: those of documents are made first.
    ``on_event`` is called until then.

    Raises
    ------
    ConfigError
        If there is neither a client nor a scheduler: a local cluster would end with this process.

    Examples
    --------
    ::

        name = daskxml.launch(scheduler="tcp://host:8786", train="/shared/train.txt.gz")
        run = daskxml.attach(name, scheduler="tcp://host:8786").follow()
    """
    if client is None and scheduler is None:
        raise ConfigError("a detached run needs --scheduler: a local cluster ends with its command")
    given: dict[str, Any] = {"train": train, "test": test, "overrides": overrides}
    job = Job.of(config, **given, out=out, resume=resume, find=find_rows)
    return Cluster(client, scheduler).launch(job, on_event or ignore)


def _new_name() -> str:
    """Return the name of a run, known here before it begins: Ctrl-C may come at any time."""
    return secrets.token_hex(4)


def _releasing(on_event: OnEvent, matrices: Mapping[str, Given], placed: Scattered) -> OnEvent:
    """Release placed rows once the run's own partitions are there; a pipeline keeps its own."""

    def publish(event: Mapping[str, Any]) -> Any:
        if event["kind"] == "started":
            for name in matrices:
                placed[name].clear()
        return on_event(event)

    return publish
