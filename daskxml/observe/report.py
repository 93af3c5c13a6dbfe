"""Reports of runs: one HTML page with everything in it, and its tables as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.core.errors import ModelError
from daskxml.observe.chart import Chart
from daskxml.observe.figures import comparison, worker_charts, worker_time_chart
from daskxml.observe.html import render
from daskxml.observe.run_view import Row, best_value, by_frequency, elapsed, phases, reach
from daskxml.observe.stored_runs import (
    StoredRun,
    check_metric,
    default_level,
    default_metric,
    measured_metrics,
    read_runs,
)
from daskxml.observe.wording import dotted, history_event

PAGE, TEMPLATE = "index.html", "page.html.jinja"
_MOST_EVENTS = 100
Cells = dict[str, Any]
_UNIQUE = ("run.name",)  # settings that differ in all runs


@dataclass(frozen=True, kw_only=True)
class Written:
    """The files of a report.

    Attributes
    ----------
    page
        The page, which needs none of the other files.
    tables
        CSV files.
    problems
        Sentences on what could not be read of the runs.
    """

    page: Path
    tables: tuple[Path, ...]
    problems: tuple[str, ...]


def write_report(
    directories: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    metric: str | None = None,
    level: float | None = None,
) -> Written:
    """Write a report of runs over each other, real or simulated, over or under way.

    Parameters
    ----------
    directories
        Of runs, or folders of them.
    out
        Directory of the report, whose files are replaced; None takes ``report`` in the one run's
        directory, or in the folder that holds the first.
    metric
        What is compared; None takes what the first run's ``training.target_metric`` names.
    level
        Of the metric, to be reached; None takes 95 % of the best of all runs.

    Raises
    ------
    ModelError
        If a directory holds no run, or ``out`` cannot be written to.
    ConfigError
        If no run has measured the metric that is asked for.
    """
    runs = read_runs(directories)
    if metric is not None:
        check_metric(runs, metric)
    chosen = metric or default_metric(runs)
    level = default_level(runs, chosen) if level is None else level
    folder = Path(out) if out is not None else default_folder(runs)
    _make(folder)
    common = comparison(runs, chosen, level)
    sections = [
        Section(run, [*worker_charts(run.course, run.workers), worker_time_chart(run)])
        for run in runs
    ]
    page = folder / PAGE
    try:
        page.write_text(render_page(runs, common, sections, chosen, level), encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{page}: cannot be written ({error.strerror})") from error
    return Written(
        page=page,
        tables=_write_tables(folder, runs, chosen, level),
        problems=tuple(f"{run.name}: {problem}" for run in runs for problem in run.problems),
    )


def default_folder(runs: Sequence[StoredRun]) -> Path:
    """Return where a report goes that is given no ``out``."""
    first = runs[0].directory
    return first / "report" if len(runs) == 1 else first.parent / "report"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{folder}: cannot be made ({error.strerror}); choose another --out"
        raise ModelError(problem) from error


def _write_tables(
    folder: Path, runs: Sequence[StoredRun], metric: str, level: float | None
) -> tuple[Path, ...]:
    found = {
        "summary.csv": summary(runs, metric, level),
        "history.csv": history_rows(runs),
        "workers.csv": worker_rows(runs),
        "frequency.csv": frequency_rows(runs),
    }
    for name, rows in found.items():
        write_csv(folder / name, rows, header=("run", "megabatch"))
    return tuple(folder / name for name in found)


# ---------------------------------------------------------------------------- the page


@dataclass(frozen=True)
class Section:
    """A run with the charts of its workers."""

    run: StoredRun
    charts: Sequence[Chart]

    @property
    def events(self) -> list[str]:
        """Workers that came and went, a line each."""
        history = self.run.history
        return [history_event(row, event) for row in history for event in row.get("events", [])]


def render_page(
    runs: Sequence[StoredRun],
    charts: Sequence[Chart],
    sections: Sequence[Section],
    metric: str,
    level: float | None,
) -> str:
    """Return the page.

    Parameters
    ----------
    runs
        All runs of the report.
    charts
        Those that compare them.
    sections
        One for each run.
    metric, level
        What is compared, and the level to reach; None where nothing was measured.
    """
    return render(
        TEMPLATE,
        runs=runs,
        charts=charts,
        sections=sections,
        metric=metric,
        level=level,
        summary=summary(runs, metric, level),
        metrics=metrics_table(runs),
        frequencies=frequency_rows(runs),
        differences=differences(runs) if len(runs) > 1 else {},
        most_events=_MOST_EVENTS,
    )


# ----------------------------------------------------------------------------- tables


def summary(runs: Sequence[StoredRun], metric: str, level: float | None) -> list[Cells]:
    """Return a row for every run: how it ended, how far it came, and when it reached a level.

    Seconds are of training and merging; ``wall_s`` includes evaluation. Missing values are None.
    """
    return [_summary_row(run, metric, level) for run in runs]


def _summary_row(run: StoredRun, metric: str, level: float | None) -> Cells:
    last = run.history[-1] if run.history else {}
    train_s = elapsed(run.history)[-1] if run.history else 0.0
    spent = phases(run.history)
    training_s = spent["computing"] + spent["waiting"]
    reached = reach(run.history, metric, level) if level is not None else None
    if reached is not None and not reached.is_reached:
        reached = None
    return {
        "run": run.name,
        "strategy": run.config.get("strategy", {}).get("name"),
        "workers": len(run.workers) or None,
        "time": "real" if run.simulation is None else "virtual",
        "state": run.state,
        "megabatches": len(run.history),
        "epochs": last.get("epoch"),
        "rows": last.get("rows"),
        "train_s": train_s,
        "wall_s": last.get("wall_s"),
        "rows_per_s": last["rows"] / train_s if train_s else None,
        "waiting_share": spent["waiting"] / training_s if training_s else None,
        "last": run.metrics.get(metric),
        "best": best_value(run.history, metric),
        "reached_s": reached.train_s if reached else None,
        "reached_rows": reached.rows if reached else None,
        "reached_megabatches": reached.megabatch if reached else None,
    }


def metrics_table(runs: Sequence[StoredRun]) -> list[Cells]:
    """Return a row for every metric, with the last value of each run by the run's name."""
    names = dict.fromkeys(name for run in runs for name in run.metrics if "@" in name)
    return [{"metric": n, **{run.name: run.metrics.get(n) for run in runs}} for n in names]


def differences(runs: Sequence[StoredRun]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all runs, with each run's value.

    Examples
    --------
    >>> from pathlib import Path
    >>> first, second = ({"optimizer": {"name": n}, "run": {"seed": 0}} for n in ("sgd", "adam"))
    >>> differences([StoredRun(name="a", directory=Path(), config=first),
    ...              StoredRun(name="b", directory=Path(), config=second)])
    {'optimizer.name': ['sgd', 'adam']}
    """
    flat = [dotted(run.config) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    values = {key: [settings.get(key) for settings in flat] for key in keys}
    return {
        key: found
        for key, found in values.items()
        if key not in _UNIQUE and any(value != found[0] for value in found)
    }


def frequency_rows(runs: Sequence[StoredRun]) -> list[Cells]:
    """Return a row for every group of labels of similar frequency in each run's last evaluation."""
    return [
        {
            "run": run.name,
            "least_training_rows": group.least,
            "k": group.k,
            "ranked": group.ranked,
            "hits": group.hits,
            "true": group.true,
            "precision": group.precision,
            "recall": group.recall,
        }
        for run in runs
        for group in by_frequency(run.history)
    ]


# -------------------------------------------------------------------------------- CSV


def history_rows(runs: Sequence[StoredRun]) -> list[Cells]:
    """Return a row for every mega-batch of every run, with all metrics that any run has."""
    metrics = measured_metrics(runs)
    return [
        _history_row(run, row, until_s, metrics)
        for run in runs
        for row, until_s in zip(run.history, elapsed(run.history), strict=True)
    ]


def _history_row(run: StoredRun, row: Row, until_s: float, metrics: Sequence[str]) -> Cells:
    plain = ("rows", "epoch", "wall_s", "train_s", "merge_s", "eval_s", "loss", "training_loss")
    moved = ("merged_bytes", "moved_bytes", "perturbed")
    return {
        "run": run.name,
        "megabatch": row["megabatch"],
        "train_and_merge_s": until_s,
        **{key: row.get(key) for key in (*plain, *moved)},
        **{name: row["metrics"].get(name) for name in metrics},
    }


def worker_rows(runs: Sequence[StoredRun]) -> list[Cells]:
    """Return a row for every worker of every mega-batch, without its leases."""
    counts = ("rows", "updates", "nonzeros", "batch_rows", "lr", "weight", "pool_threads")
    keys = (*counts, "busy_s", "idle_s")
    return [
        {"run": run.name, "megabatch": row["megabatch"], "worker": name}
        | {key: worker.get(key) for key in keys}
        for run in runs
        for row in run.history
        for name, worker in row["workers"].items()
    ]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], header: Sequence[str] = ()) -> None:
    """Write rows that have the same columns; None is an empty field.

    Parameters
    ----------
    path
        Replaced if it is there.
    rows
        By column.
    header
        The columns, where there may be no rows.

    Raises
    ------
    ModelError
        If it cannot be written.
    """
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else list(header))
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror})") from error
