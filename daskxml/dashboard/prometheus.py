"""The figures of runs under way for Prometheus, in the scheduler's ``/metrics``.

Every label has few values: a run, a worker of its last mega-batch (the first `WORKERS` of them), a
metric of its evaluation, a state. A run that is over leaves. Without ``prometheus_client`` Dask
has no ``/metrics``, and nothing is exported.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from daskxml.dashboard.headline import progress_of, rows_per_s, state_of, time_left_s, title
from daskxml.dashboard.record import Record
from daskxml.runtime.play import STATES

if TYPE_CHECKING:
    from prometheus_client.core import Metric

WORKERS = 256
RUN, WORKER = ("run",), ("run", "worker")
OTHER_STATES = ("loading", "writing the model")


class Family(NamedTuple):
    """A metric: its name after ``daskxml_``, its HELP line, its labels, whether it only grows."""

    name: str
    help: str
    labels: tuple[str, ...]
    grows: bool = False


FAMILIES = (
    Family("run_info", "A run under way; the value is 1.", (*RUN, "name", "strategy")),
    Family("run_state", "1 for what a run does now, 0 for the other states.", (*RUN, "state")),
    Family("run_progress_ratio", "How far a run has come to its nearest limit, 0 to 1.", RUN),
    Family("run_left_seconds", "Estimated time to the end of a run.", RUN),
    Family("run_rows", "Rows in the model; fewer after going back to a checkpoint.", RUN),
    Family("run_epoch", "Epochs done, with the share of the one under way.", RUN),
    Family("run_megabatch", "Mega-batches merged; fewer after going back to a checkpoint.", RUN),
    Family("run_rows_per_second", "Rows a second in the last mega-batch, with its merge.", RUN),
    Family("run_loss", "Mean training loss over the rows of the last mega-batch.", RUN),
    Family("run_metric", "The last evaluation, by metric.", (*RUN, "metric")),
    Family("run_best_metric", "The best evaluation so far, by metric.", (*RUN, "metric")),
    Family("run_phase_seconds", "Time spent, by phase.", (*RUN, "phase"), grows=True),
    Family("run_sent_bytes", "Bytes sent between workers, by purpose.", (*RUN, "purpose"), True),
    Family("run_workers", "Workers in the last mega-batch.", RUN),
    Family("run_workers_lost", "Workers that a run has lost.", RUN, grows=True),
    Family("run_workers_joined", "Workers that joined a run after its start.", RUN, grows=True),
    Family("worker_batch_rows", "Batch size of a worker.", WORKER),
    Family("worker_learning_rate", "Learning rate of a worker, before the schedule.", WORKER),
    Family("worker_updates", "Updates by a worker in the last mega-batch.", WORKER),
    Family("worker_rows_per_second", "Rows a second by a worker while it trained.", WORKER),
    Family("worker_busy_ratio", "Share of the training time that a worker was busy.", WORKER),
    Family("worker_weight", "Weight of a worker in the last merge.", WORKER),
    Family("worker_sent_bytes", "Bytes that a worker has sent to others.", WORKER, grows=True),
    Family("worker_memory_bytes", "Memory of a worker, on host and device.", (*WORKER, "where")),
)

Samples = Iterator[tuple[str, tuple[str, ...], float]]


class Watcher(Protocol):
    """Whoever has records."""

    records: dict[str, Record]


class Collector:
    """What Prometheus' client asks at every scrape, for all schedulers of this process."""

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []

    def describe(self) -> list[Metric]:
        """Return the metrics without values, which registering asks for."""
        return list(families([]).values())

    def collect(self) -> Iterable[Metric]:
        """Return every metric with its present values."""
        records = [it for watcher in self.watchers for it in watcher.records.values()]
        for record in records:
            record.update()
        return families([record for record in records if not record.is_over]).values()


_collector = Collector()


def export(watcher: Watcher) -> bool:
    """Show a watcher's runs in ``/metrics``; return False where Prometheus' client is missing."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return False
    if not _collector.watchers:
        REGISTRY.register(_collector)
    if watcher not in _collector.watchers:
        _collector.watchers.append(watcher)
    return True


def withdraw(watcher: Watcher) -> None:
    """Undo `export`; nothing happens where it has not been called."""
    if watcher not in _collector.watchers:
        return
    from prometheus_client import REGISTRY

    _collector.watchers.remove(watcher)
    if not _collector.watchers:
        REGISTRY.unregister(_collector)


def families(records: Iterable[Record]) -> dict[str, Metric]:
    """Return every metric of these runs, by its name after ``daskxml_``."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {True: CounterMetricFamily, False: GaugeMetricFamily}
    found = {
        family.name: kinds[family.grows](
            f"daskxml_{family.name}", family.help, labels=family.labels
        )
        for family in FAMILIES
    }
    for record in records:
        for name, labels, value in (*run_samples(record), *worker_samples(record)):
            found[name].add_metric((record.run, *labels), float(value))
    return found


def run_samples(record: Record) -> Samples:
    """Yield name, labels after ``run``, and value of what there is to say of a run."""
    yield "run_info", (title(record), record.config.strategy_name), 1.0
    now = state_of(record)
    for state in dict.fromkeys((*STATES.values(), *OTHER_STATES, now)):
        yield "run_state", (state,), float(state == now)
    yield "run_epoch", (), record.status.get("epoch", 0.0)
    for what in ("train", "merge", "eval"):
        yield "run_phase_seconds", (what,), record.totals[f"{what}_s"]
    yield "run_sent_bytes", ("merge",), record.totals["merged_bytes"]
    yield "run_sent_bytes", ("training",), record.totals["moved_bytes"]
    yield "run_workers_lost", (), record.totals["losses"]
    yield "run_workers_joined", (), record.totals["arrivals"]
    if record.row:
        yield from _row_samples(record, record.row)


def _row_samples(record: Record, row: Mapping[str, Any]) -> Samples:
    progress, _ = progress_of(record.config, row, record.status)
    left_s = time_left_s(progress, row["wall_s"] + time.time() - record.row_at_s)
    for name, told in (("run_progress_ratio", progress), ("run_left_seconds", left_s)):
        if told is not None:
            yield name, (), told
    yield "run_rows", (), row["rows"]
    yield "run_megabatch", (), row["megabatch"]
    yield "run_rows_per_second", (), rows_per_s(row)
    yield "run_loss", (), row["loss"]
    yield "run_workers", (), len(row["workers"])
    for name, (value, _) in record.best.items():
        yield "run_best_metric", (name,), value
    for score in list(record.scores)[-1:]:
        for name, value in score.metrics.items():
            yield "run_metric", (name,), value


def worker_samples(record: Record) -> Samples:
    """Yield name, labels after ``run``, and value of what there is to say of workers."""
    for worker, did in list(record.row.get("workers", {}).items())[:WORKERS]:
        spent_s = did["busy_s"] + did["idle_s"]
        yield "worker_batch_rows", (worker,), did["batch_rows"]
        yield "worker_learning_rate", (worker,), did["lr"]
        yield "worker_updates", (worker,), did["updates"]
        yield "worker_weight", (worker,), did["weight"]
        yield "worker_sent_bytes", (worker,), record.activity.sent_bytes[worker]
        if spent_s:
            yield "worker_rows_per_second", (worker,), did["rows"] / spent_s
            yield "worker_busy_ratio", (worker,), did["busy_s"] / spent_s
    yield from _memory_samples(record)


def _memory_samples(record: Record) -> Samples:
    for memory in list(record.memory)[-1:]:
        parts = zip(memory.workers, memory.host_bytes, memory.device_bytes, strict=True)
        for worker, host_bytes, device_bytes in list(parts)[:WORKERS]:
            for where, value in (("host", host_bytes), ("device", device_bytes)):
                if value == value:  # not NaN
                    yield "worker_memory_bytes", (worker, where), value
