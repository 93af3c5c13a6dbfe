"""A report's files: one HTML page with everything in it, its tables, and its pictures (PNG)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.core.errors import ConfigError, ModelError
from daskxml.observe.chart import COLOURS, DASHES, Chart, Series, shorten
from daskxml.observe.html import render
from daskxml.observe.report.figures import comparison, worker_charts
from daskxml.observe.report.runs import StoredRun, best, check_metric, default_metric, read_runs
from daskxml.observe.report.tables import (
    differences,
    frequency_rows,
    history_rows,
    metrics_table,
    summary,
    worker_rows,
    write_csv,
)
from daskxml.observe.run_view import NEAR_BEST
from daskxml.observe.wording import history_event

PAGE, TEMPLATE = "index.html", "page.html.jinja"
_MOST_EVENTS = 100
INCHES, DOTS_PER_INCH = (8.0, 4.8), 150
_NAME_CHARACTERS = 48
_DOTTED = 40  # points of a series; longer ones have no dots


@dataclass(frozen=True, kw_only=True)
class Written:
    """The files of a report.

    Attributes
    ----------
    page
        The page, which needs none of the other files.
    pictures, tables
        PNG and CSV files; no pictures where Matplotlib is missing.
    problems
        Sentences on what could not be read of the runs.
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
        Of the metric, to be reached; None takes 95 % of the best of all runs.
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
    folder = Path(out) if out is not None else default_folder(runs)
    _make(folder)
    common = comparison(runs, chosen, level)
    sections = [Section(run, worker_charts(run, i)) for i, run in enumerate(runs, 1)]
    page = folder / PAGE
    try:
        page.write_text(render_page(runs, common, sections, chosen, level), encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{page}: cannot be written ({error.strerror})") from error
    charts = [*common, *(chart for section in sections for chart in section.charts)]
    return Written(
        page=page,
        pictures=_draw(folder, charts) if pictures and has_matplotlib() else (),
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


def _draw(folder: Path, charts: Sequence[Chart]) -> tuple[Path, ...]:
    pictures = []
    for chart in charts:
        if not chart.is_empty and chart.constant is None:
            pictures.append(folder / f"{chart.name}.png")
            try:
                draw_png(chart, pictures[-1])
            except OSError as error:
                problem = f"{pictures[-1]}: cannot be written ({error.strerror})"
                raise ModelError(problem) from error
    return tuple(pictures)


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


def has_matplotlib() -> bool:
    """Whether PNGs can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_png(chart: Chart, path: Path) -> None:
    """Draw a chart on white into a file, which is replaced.

    Parameters
    ----------
    chart
        Not empty.
    path
        Of the file.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    if not has_matplotlib():
        raise ConfigError("PNGs need Matplotlib: pip install 'daskxml[report]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.x_names:
        axes.set_xticks(range(len(chart.x_names)), chart.x_names)
    (_draw_bars if chart.bars else _draw_lines)(axes, chart)
    figure.suptitle(chart.title, x=0.01, ha="left", fontweight="bold")
    if chart.bars or chart.needs_legend or chart.target is not None:
        _legend(figure, axes)
    figure.savefig(path, metadata={"Software": "daskxml"})


def _draw_lines(axes: Any, chart: Chart) -> None:
    axes.grid(axis="y", alpha=0.25)
    for number, line in enumerate(chart.series):
        if line.points:
            _draw_one(axes, line, number)
    marked = [point for line in chart.series for point in line.marked]
    if marked:
        style = {"marker": "D", "facecolors": "none", "edgecolors": "black", "s": 22, "zorder": 3}
        axes.scatter(*zip(*marked, strict=True), label=chart.mark_meaning, **style)
    if chart.target is not None:
        axes.axhline(chart.target, color="0.4", ls=":", label=chart.target_name)
    if chart.from_zero:
        axes.set_ylim(bottom=0)


def _draw_one(axes: Any, line: Series, number: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    xs, ys = zip(*line.points, strict=True)
    style: dict[str, Any] = {"color": colour}
    if dashes:
        style["linestyle"] = (0, tuple(map(float, dashes.split())))
    if len(xs) <= _DOTTED or not line.is_joined:
        style |= {"marker": "o", "markersize": 3}
    if not line.is_joined:
        style["linestyle"] = "none"
    axes.plot(xs, ys, label=shorten(line.name, _NAME_CHARACTERS), **style)
    if line.band:
        lower, upper = zip(*line.band, strict=True)
        axes.fill_between(xs, lower, upper, color=colour, alpha=0.2, linewidth=0)


def _draw_bars(axes: Any, chart: Chart) -> None:
    assert chart.bars
    names = [shorten(name, _NAME_CHARACTERS) for name in chart.bars]
    places, left = range(len(names)), [0.0] * len(names)
    for number, part in enumerate(next(iter(chart.bars.values()))):
        widths = [bar[part] for bar in chart.bars.values()]
        axes.barh(places, widths, left=left, color=COLOURS[number % len(COLOURS)], label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, names)
    axes.invert_yaxis()  # the first on top


def _legend(figure: Any, axes: Any) -> None:
    """Put the legend under the plot, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), 110 // (max(map(len, labels)) + 6)))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False)
