"""The figures of runs under way for Prometheus, in the scheduler's ``/metrics``.

Every label has few values: a run, a worker of its last mega-batch (the first `WORKERS` of them), a
metric of its evaluation, a state. A run that is over leaves. Without ``prometheus_client`` Dask
has no ``/metrics``, and nothing is exported.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from daskxml.core.text import printable
from daskxml.observe.run_view import (
    JOINED,
    LOST,
    Worker,
    busy_share,
    rows_per_s,
    trained_rows_per_s,
)
from daskxml.session.run_loop import STATES

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from daskxml.observe.dashboard.plugin import RunSeries

WORKERS = 256
RUN, WORKER = ("run",), ("run", "worker")
OTHER_STATES = ("loading", "preparing workers", "writing the model")


class Family(NamedTuple):
    """A metric: its name after ``daskxml_``, its HELP line, its labels, whether it is a counter."""

    name: str
    help: str
    labels: tuple[str, ...]
    is_counter: bool = False


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
    Family("run_phase_seconds", "Time spent, by phase.", (*RUN, "phase"), is_counter=True),
    Family("run_sent_bytes", "Bytes sent between workers, by purpose.", (*RUN, "purpose"), True),
    Family("run_workers", "Workers in the last mega-batch.", RUN),
    Family("run_workers_lost", "Workers that a run has lost.", RUN, is_counter=True),
    Family(
        "run_workers_joined", "Workers that joined a run after its start.", RUN, is_counter=True
    ),
    Family("worker_batch_rows", "Batch size of a worker.", WORKER),
    Family("worker_learning_rate", "Learning rate of a worker, before the schedule.", WORKER),
    Family("worker_updates", "Updates by a worker in the last mega-batch.", WORKER),
    Family("worker_rows_per_second", "Rows a second by a worker while it trained.", WORKER),
    Family("worker_busy_ratio", "Share of the training time that a worker was busy.", WORKER),
    Family("worker_weight", "Weight of a worker in the last merge.", WORKER),
    Family("worker_sent_bytes", "Bytes that a worker has sent to others.", WORKER, is_counter=True),
)

Samples = Iterator[tuple[str, tuple[str, ...], float | None]]


class Source(Protocol):
    """An object with series of runs, such as the dashboard's plugin."""

    series: dict[str, RunSeries]


class Collector:
    """Collects the figures at every scrape, of all schedulers of this process."""

    def __init__(self) -> None:
        self.sources: list[Source] = []

    def describe(self) -> list[Metric]:
        """Return the metrics without values, which registering asks for."""
        return list(families([]).values())

    def collect(self) -> Iterable[Metric]:
        """Return every metric with its present values."""
        found = [series for source in self.sources for series in source.series.values()]
        for series in found:
            series.update()
        return families([series for series in found if not series.view.is_over]).values()


_collector = Collector()


def export(source: Source) -> bool:
    """Show a source's runs in ``/metrics``; return False where Prometheus' client is missing."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return False
    if not _collector.sources:
        REGISTRY.register(_collector)
    if source not in _collector.sources:
        _collector.sources.append(source)
    return True


def withdraw(source: Source) -> None:
    """Undo `export`; do nothing where it has not been called."""
    if source not in _collector.sources:
        return
    from prometheus_client import REGISTRY

    _collector.sources.remove(source)
    if not _collector.sources:
        REGISTRY.unregister(_collector)


def families(all_series: Iterable[RunSeries]) -> dict[str, Metric]:
    """Return every metric of these runs, by its name after ``daskxml_``."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {True: CounterMetricFamily, False: GaugeMetricFamily}
    found = {
        family.name: kinds[family.is_counter](
            f"daskxml_{family.name}", family.help, labels=family.labels
        )
        for family in FAMILIES
    }
    for series in all_series:
        for name, labels, value in (*_run_samples(series), *_worker_samples(series)):
            if value is not None:
                shown = map(printable, (series.run, *labels))  # UTF-8 holds no lone surrogate
                found[name].add_metric([*shown], float(value))
    return found


def _run_samples(series: RunSeries) -> Samples:
    """Yield name, labels after ``run``, and value of a run's metrics."""
    view = series.view
    yield "run_info", (series.title, series.config.algorithm), 1.0
    for state in dict.fromkeys((*STATES.values(), *OTHER_STATES, series.state)):
        yield "run_state", (state,), float(state == series.state)
    yield "run_epoch", (), view.epoch
    for phase in ("train", "merge", "eval"):
        yield "run_phase_seconds", (phase,), view.totals[f"{phase}_s"]
    yield "run_sent_bytes", ("merge",), view.totals["merged_bytes"]
    yield "run_sent_bytes", ("training",), view.totals["moved_bytes"]
    yield "run_workers_lost", (), view.totals[LOST]
    yield "run_workers_joined", (), view.totals[JOINED]
    if not view.row:
        return
    yield "run_progress_ratio", (), view.progress()
    yield "run_left_seconds", (), series.left_s(time.time())
    yield "run_rows", (), view.row["rows"]
    yield "run_megabatch", (), view.megabatch
    yield "run_rows_per_second", (), rows_per_s(view.row) or 0.0
    if "loss" in view.row:
        yield "run_loss", (), view.row["loss"]
    yield "run_workers", (), len(view.row["workers"])
    for name, (best, _) in view.best.items():
        yield "run_best_metric", (name,), best
    for point in list(series.course.evaluated)[-1:]:
        for name, value in point.metrics.items():
            yield "run_metric", (name,), value


def _worker_samples(series: RunSeries) -> Samples:
    """Yield name, labels after ``run``, and value of the workers' metrics."""
    workers: Mapping[str, Worker] = series.view.row.get("workers", {})
    for name, worker in list(workers.items())[:WORKERS]:
        yield "worker_batch_rows", (name,), worker["batch_rows"]
        yield "worker_learning_rate", (name,), worker["lr"]
        yield "worker_updates", (name,), worker["updates"]
        yield "worker_weight", (name,), worker["weight"]
        yield "worker_sent_bytes", (name,), series.timeline.sent_bytes[name]
        yield "worker_rows_per_second", (name,), trained_rows_per_s(worker)
        yield "worker_busy_ratio", (name,), busy_share(worker)
