"""A report's files: one page, its pictures, its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daskxml.charts import Chart
from daskxml.charts.png import draw_png, has_matplotlib
from daskxml.errors import ModelError
from daskxml.reports import figures, tables
from daskxml.reports.page import Section, render_page
from daskxml.reports.runs import RunRecord, read_runs
from daskxml.reports.targets import NEAR_BEST, best, check_metric

PAGE = "index.html"
DEFAULT_METRIC = "P@1"


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a report has written.

    Attributes
    ----------
    page
        The page, which needs none of the other files.
    pictures, tables
        PNG and CSV files; no pictures where Matplotlib is missing.
    problems
        What could not be read of the runs, in words.
    """

    page: Path
    pictures: tuple[Path, ...]
    tables: tuple[Path, ...]
    problems: tuple[str, ...]


def write_report(
    directories: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    metric: str | None = None,
    level: float | None = None,
    pictures: bool = True,
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
        Of the metric, whose time is told; None takes 95 % of the best of all runs.
    pictures
        Draw the charts as PNG files too, where Matplotlib is installed.

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
    top = best(runs, chosen)
    if level is None and top is not None:
        level = NEAR_BEST * top
    place = _make(Path(out) if out is not None else default_place(runs))
    common = figures.comparison(runs, chosen, level)
    sections = [Section(run, figures.worker_charts(run, i)) for i, run in enumerate(runs, 1)]
    page = place / PAGE
    _write(page, render_page(runs, common, sections, chosen, level))
    charts = [*common, *(chart for section in sections for chart in section.charts)]
    return Written(
        page=page,
        pictures=_draw(place, charts) if pictures and has_matplotlib() else (),
        tables=_write_tables(place, runs, chosen, level),
        problems=tuple(f"{run.name}: {problem}" for run in runs for problem in run.problems),
    )


def default_metric(runs: Sequence[RunRecord]) -> str:
    """Return the metric that the first run aims at, if it was measured; else one that was."""
    aims = [run.config.get("training", {}).get("target_metric", "") for run in runs]
    measured = [name for run in runs for name in run.metrics if "@" in name]
    known = [name for name in (*aims[:1], DEFAULT_METRIC) if name in measured]
    return next(iter([*known, *measured]), DEFAULT_METRIC)


def default_place(runs: Sequence[RunRecord]) -> Path:
    """Return where a report goes that nobody has named a place for."""
    first = runs[0].directory
    return first / "report" if len(runs) == 1 else first.parent / "report"


def _make(place: Path) -> Path:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{place}: cannot be made ({error.strerror}); choose another --out"
        raise ModelError(problem) from error
    return place


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror})") from error


def _draw(place: Path, charts: Sequence[Chart]) -> tuple[Path, ...]:
    pictures = []
    for chart in charts:
        if not chart.is_empty:
            pictures.append(place / f"{chart.name}.png")
            try:
                draw_png(chart, pictures[-1])
            except OSError as error:
                problem = f"{pictures[-1]}: cannot be written ({error.strerror})"
                raise ModelError(problem) from error
    return tuple(pictures)


def _write_tables(
    place: Path, runs: Sequence[RunRecord], metric: str, level: float | None
) -> tuple[Path, ...]:
    found = {
        "summary.csv": tables.summary(runs, metric, level),
        "history.csv": tables.history_rows(runs),
        "workers.csv": tables.worker_rows(runs),
    }
    for name, rows in found.items():
        tables.write_csv(place / name, rows, header=("run", "megabatch"))
    return tuple(place / name for name in found)
