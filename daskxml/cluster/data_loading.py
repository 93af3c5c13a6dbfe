"""A run's data on the workers of a cluster, which several runs may share.

Runs of one scheduler with the same files, the same ``[data]`` section and the same seed have the
same partitions. The first of them reads the rows (`daskxml.session.row_loading`), the others take
its futures, so that the rows are on the workers once. They are released with the last of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any

from distributed import Client, Future, wait

from daskxml.cluster.connection import submit
from daskxml.config import RunConfig
from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.core.work_stats import SHARED, StageRecord
from daskxml.data.blocks import stamp_files
from daskxml.data.reading import CHANGED, checksum
from daskxml.session.row_loading import (
    DataLayout,
    GivenRows,
    Rows,
    Shards,
    load_partitions,
    submit_each,
)

# Keys of what the client has put on the workers instead of files: partitions of rows by ``train``
# and ``test``, and one each of the array of the training rows' ``weights`` and of their columns'
# ``names``.
ScatteredKeys = Mapping[str, Sequence[str]]
_OF_METRICS = ("propensity_a", "propensity_b")  # in [data], but not what rows are made of


class ClusterTasks:
    """Tasks of a cluster; no rows pass through the scheduler.

    Dask computes blocks and partitions that are lost with a worker again, by reading the files; the
    run ends if they have changed.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, name: str, task: Callable[..., Any], *args: Any) -> Future:
        """Submit a task, with this key."""
        return submit(self._client, task, *args, key=name)

    async def wait(self, futures: Sequence[Future]) -> None:
        """Wait until all are computed, without fetching them; raise the first error in the list."""
        if futures:
            with self._client.as_current():  # a user may have another one open
                await wait(futures)
        for future in futures:
            if future.status == "error":
                raise await future.exception()

    async def fetch(self, futures: Sequence[Future]) -> list[Any]:
        """Return what they hold."""
        return list(await self._client.gather(futures))


@dataclass(frozen=True)
class LoadedData:
    """A run's data.

    Attributes
    ----------
    spec
        The model for this data.
    rows
        On the workers.
    prepared
        What else fitting takes of them, see `daskxml.models.protocol.TrainedKind.prepare`.
    was_there
        Another run had read the rows.
    """

    spec: Any
    rows: Rows
    prepared: Any = None
    was_there: bool = False

    def stages(self) -> tuple[StageRecord, ...]:
        """Return how the rows came to the workers, or that another run had brought them there."""
        stages = self.rows.stages
        if not self.was_there:
            return stages
        return tuple(replace(stage, outcome=SHARED, seconds=0.0) for stage in stages)


@dataclass(eq=False)
class _Entry:
    """Rows that are there, or that one of the runs is reading."""

    rows: Rows | None = None
    runs: set[str] = field(default_factory=set)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedRows:
    """The rows of all runs of a scheduler, by what they were made of.

    Examples
    --------
    >>> class Ten:
    ...     is_intact = True
    ...     def release(self):
    ...         print("released")
    >>> async def read():
    ...     print("read")
    ...     return Ten()
    >>> async def two_runs():
    ...     shared = SharedRows()
    ...     for run in ("first", "second"):
    ...         await shared.acquire("rows", run, read, lambda rows: True)
    ...     shared.release("first")
    ...     shared.release("second")
    >>> asyncio.run(two_runs())
    read
    released
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    async def acquire(
        self,
        name: str,
        run: str,
        read: Callable[[], Awaitable[Rows]],
        fit: Callable[[Rows], bool],
    ) -> tuple[Rows, bool]:
        """Return the rows of this name, and whether they were there; else read them.

        Whoever comes while they are read waits. If reading fails, the next one reads for itself.

        Parameters
        ----------
        name
            The same for the same rows.
        run
            Keeps the rows until its `release`.
        read
            Reads them.
        fit
            Whether rows of this name can be used: their partitions may be too few.
        """
        for place in (name, run):  # its own, if it cannot use those of others
            entry = self._entries.setdefault(place, _Entry())
            entry.runs.add(run)
            try:
                async with entry.reading:
                    if entry.rows is None:
                        entry.rows = await read()
                        return entry.rows, False
                    if entry.rows.is_intact and fit(entry.rows):
                        return entry.rows, True
            except BaseException:
                self.release(run)
                raise
            self.release(run)
        raise AssertionError("nobody else has rows of its name")

    def release(self, run: str) -> None:
        """Release the rows that no other run holds."""
        for name, entry in list(self._entries.items()):
            entry.runs.discard(run)
            if not entry.runs:
                del self._entries[name]
                if entry.rows is not None:
                    entry.rows.release()


async def load(
    client: Client,
    config: RunConfig,
    run: str,
    workers: int,
    scattered: ScatteredKeys,
    stored: DataLayout | None,
    shared: SharedRows,
) -> LoadedData:
    """Place the training and the test rows on the workers, unless another run has.

    Parameters
    ----------
    workers
        Their number, which determines the number of partitions.
    scattered
        Rows to use instead of files.
    stored
        The layout of a resumed run, which must not change.
    shared
        The rows of all runs.

    Raises
    ------
    InputError
        The first problem in the order of the files, training files first.
    """

    async def read() -> Rows:
        train, test, weights = (
            [Future(key, client=client) for key in scattered.get(name, ())]
            for name in ("train", "test", "weights")
        )
        given = GivenRows(train, test, next(iter(weights), None))
        tasks = ClusterTasks(client)
        rows = await load_partitions(tasks, config, run, workers, given, stored)
        return await _held_to_checksums(tasks, rows, run)

    name = await _name_rows(client, config, run, scattered)
    rows, was_there = await shared.acquire(name, run, read, lambda rows: rows.fit(stored, workers))
    spec = rows.model_spec(config)
    tasks, parts, seed = ClusterTasks(client), rows.train, config.run.seed
    spec, prepared = config.kind.prepare(
        parts.parts, rows.label_counts, spec, seed, parts.blocks(),
        lambda name, *call: tasks.submit(f"fit-{name}-{run}", *call),
    )  # fmt: skip
    await tasks.wait([each for each in (spec, prepared) if isinstance(each, Future)])
    spec = await spec if isinstance(spec, Future) else spec
    return LoadedData(spec, rows, prepared, was_there)


async def _held_to_checksums(tasks: ClusterTasks, rows: Rows, run: str) -> Rows:
    """Return the rows in partitions that fail where they are read again and are others."""
    parts, count = [*rows.train.parts, *rows.test.parts], len(rows.train.parts)
    sums = await tasks.fetch(submit_each(tasks, f"checksum-{run}", checksum, parts))
    held = [
        tasks.submit(f"rows-{run}-{i}", check_partition, *part)
        for i, part in enumerate(zip(parts, sums, strict=True))
    ]
    await tasks.wait(held)
    train, test = Shards(held, rows.train.rows + rows.test.rows).divide(count)
    return replace(rows, train=train, test=test, checksums=tuple(sums[:count]))


def check_partition(partition: Partition, known: int) -> Partition:
    """Return a partition, unless its checksum is another one.

    Raises
    ------
    InputError
        Saying that it was read again, and has changed.
    """
    if checksum(partition) != known:
        raise InputError(CHANGED)
    return partition


async def _name_rows(client: Client, config: RunConfig, run: str, scattered: ScatteredKeys) -> str:
    """Return a name that is the same for runs with the same rows, in the same partitions.

    Where the files cannot be asked when they changed, that is the run's own name: whatever is
    wrong with them shows when they are read.
    """
    data = config.data
    tests = () if data.validation else data.test
    names = (data.weights, data.feature_names, data.label_names)
    paths = (*data.train, *tests, *filter(None, names))
    stamps = await submit(client, stamp_files, paths, key=f"stamp-{run}")
    if stamps is None:
        return run
    section = {key: value for key, value in asdict(data).items() if key not in _OF_METRICS}
    made_of = (section, config.run.seed, config.kind.scales_weights, dict(scattered), stamps)
    return sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
