"""A report's files: one HTML page with everything in it, and its tables as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daskxml.core.errors import ModelError
from daskxml.observe.chart import Chart
from daskxml.observe.html import render
from daskxml.observe.report.figures import comparison, worker_charts
from daskxml.observe.report.runs import (
    StoredRun,
    check_metric,
    default_level,
    default_metric,
    read_runs,
)
from daskxml.observe.report.tables import (
    differences,
    frequency_rows,
    history_rows,
    metrics_table,
    summary,
    worker_rows,
    write_csv,
)
from daskxml.observe.wording import history_event

PAGE, TEMPLATE = "index.html", "page.html.jinja"
_MOST_EVENTS = 100


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
    sections = [Section(run, worker_charts(run, i)) for i, run in enumerate(runs, 1)]
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
