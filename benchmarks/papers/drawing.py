"""What figures have in common: numbers read off histories, tables, CSV files and drawings."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study import DATA, ROOT, History

RESULTS = ROOT / "benchmarks" / "results" / "figures"
NEAR_BEST = 0.95
ENTRY_INCHES = 1.8  # of a legend
BEGIN, END = "<!-- numbers: written by the script -->", "<!-- end of the numbers -->"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure or table that is made.

    Attributes
    ----------
    name
        Of its TOML file and its results.
    given
        That file.
    folder
        Of the data sets.
    sets, algorithms
        Those that are shown; no algorithms stands for all.
    """

    name: str
    given: Mapping[str, Any]
    folder: Path
    sets: Sequence[str] = ()
    algorithms: Sequence[str] = ()

    def write(self, rows: Sequence[Mapping[str, Any]], lines: Sequence[str] = ()) -> None:
        """Write the CSV file, and the numbers of the page."""
        write_csv(RESULTS / f"{self.name}.csv", rows)
        if lines:
            write_measured(self.name, lines)


def elapsed_s(history: History) -> list[float]:
    """Return the simulated seconds of training and merging until each merged model was there."""
    return [*itertools.accumulate(row["train_s"] + row["merge_s"] for row in history)]


def points(history: History, metric: str = "P@1") -> list[dict[str, float]]:
    """Return what was measured: seconds, mega-batches, rows, epochs and the metric."""
    return [
        {
            "time_s": round(time_s, 4),
            "megabatch": row["megabatch"],
            "rows": row["rows"],
            "epoch": round(row["epoch"], 4),
            metric: round(row["metrics"][metric], 5),
        }
        for time_s, row in zip(elapsed_s(history), history, strict=True)
        if metric in row["metrics"]
    ]


def best(history: History, metric: str = "P@1") -> float:
    """Return the best value of a metric, 0 where none was measured."""
    return max((point[metric] for point in points(history, metric)), default=0.0)


def at_best(history: History) -> dict[str, float]:
    """Return all metrics of the evaluation with the best P@1."""
    measured = [row["metrics"] for row in history if row["metrics"]]
    return max(measured, key=lambda metrics: metrics["P@1"], default={"P@1": 0.0, "P@5": 0.0})


def reaching(history: History, target: float) -> dict[str, float] | None:
    """Return the first of `points` whose P@1 is at least the target, None if there is none."""
    return next((point for point in points(history) if point["P@1"] >= target), None)


def idle_share(history: History) -> float:
    """Return the share of the workers' time in training that they waited."""
    workers = [worker for row in history for worker in row["workers"].values()]
    busy_s, idle_s = (sum(worker[key] for worker in workers) for key in ("busy_s", "idle_s"))
    return idle_s / max(busy_s + idle_s, 1e-12)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys; None becomes an empty field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(path)


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows with the same keys as a Markdown table; numbers to the right, None is "-".

    A column ``NAME +-`` stands in the cells of ``NAME``.

    Examples
    --------
    >>> print("\\n".join(table_lines([{"set": "bibtex", "P@1": 0.61234, "rows": 1200}])))
    | set | P@1 | rows |
    |---|---:|---:|
    | bibtex | 0.612 | 1,200 |
    >>> table_lines([{"times": 1.05, "times +-": 0.25}])[2]
    '| 1.05 +- 0.250 |'
    """
    names = [name for name in rows[0] if not name.endswith(" +-")]
    numeric = [
        all(row[name] is None or isinstance(row[name], int | float) for row in rows)
        for name in names
    ]  # fmt: skip
    return [
        f"| {' | '.join(names)} |",
        f"|{'|'.join('---:' if is_number else '---' for is_number in numeric)}|",
        *(f"| {' | '.join(_cell(row, name) for name in names)} |" for row in rows),
    ]


def _cell(row: Mapping[str, Any], name: str) -> str:
    half = row.get(f"{name} +-")
    return _number(row[name]) + ("" if half is None else f" +- {_number(half)}")


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.{3 if abs(value) < 1.0 else 2 if abs(value) < 10.0 else 1}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_measured(name: str, lines: Sequence[str]) -> None:
    """Write the part of ``results/figures/NAME.md`` that has the numbers, between its two marks."""
    path = RESULTS / f"{name}.md"
    before, begin, rest = path.read_text("utf-8").partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: no lines {BEGIN!r} and {END!r}, between which the numbers go")
    path.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"]), "utf-8")
    print(path)


def pyplot() -> Any:
    """Return matplotlib's pyplot, set up for files."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise SystemExit(
            "the figures are drawn with matplotlib: pip install 'daskxml[bench]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({
        "font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "lines.linewidth": 1.3,
        "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
        "savefig.dpi": 130, "xtick.labelsize": 8,
    })  # fmt: skip
    return plt


Row = Mapping[str, Any]


def draw(
    name: str,
    rows: Sequence[Row],
    axes: Sequence[tuple[str, str]],
    *,
    line: str,
    across: str = "",
    down: str = "",
    is_log: bool = False,
    marker: str = "",
) -> None:
    """Draw the rows of a CSV file as ``results/figures/NAME.png``, with one legend below all.

    Parameters
    ----------
    axes
        Pairs of keys, along x and y; each has a row of panels of its own.
    line, across, down
        Keys: each of their values has a line, a column of panels, rows of panels.
    is_log, marker
        Of the y axis, and of the points.
    """
    lines, columns, groups = (
        list(dict.fromkeys(row[key] for row in rows)) if key else [None]
        for key in (line, across, down)
    )
    places = list(itertools.product(groups, axes))
    plt = pyplot()
    size = (3.6 * len(columns), 2.7 * len(places))
    figure, grid = plt.subplots(len(places), len(columns), figsize=size, squeeze=False)
    for panels, (group, (x, y)) in zip(grid, places, strict=True):
        for axis, column in zip(panels, columns, strict=True):
            mine = [r for r in rows if (not across or r[across] == column)
                    and (not down or r[down] == group)]  # fmt: skip
            for number, value in enumerate(lines):
                found = [row for row in mine if row[line] == value and row[y] is not None]
                axis.plot(
                    [r[x] for r in found], [r[y] for r in found], f"{marker}-", markersize=4,
                    color=f"C{number % 10}", label=str(value),
                )  # fmt: skip
            axis.set_title(", ".join(str(n) for n in (group, column) if n is not None), fontsize=9)
            axis.set_xlabel(x)
            _scale(axis, is_log)
            for data in {group, column} & {*DATA}:
                draw_tree(axis, str(data)) if y == "P@1" else None
        panels[0].set_ylabel(y)
    handles, labels = grid[0][0].get_legend_handles_labels()
    lines_of_legend = -(-len(labels) // min(4, max(1, int(size[0] / ENTRY_INCHES))))
    room = (0.12 + 0.22 * lines_of_legend) / size[1]
    figure.legend(handles, labels, loc="lower center", ncols=-(-len(labels) // lines_of_legend))
    figure.tight_layout(rect=(0.0, room, 1.0, 1.0))
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / f"{name}.png")
    plt.close(figure)


def _scale(axis: Any, is_log: bool) -> None:
    if not is_log:
        axis.set_ylim(bottom=0.0)
        return
    from matplotlib.ticker import LogFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(LogFormatter())
    axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2.0, 0.5)))


def draw_tree(axis: Any, data: str) -> None:
    """Draw what a linear tree reaches, where that is known, and make room for it."""
    tree = DATA[data].tree
    if tree is not None:
        axis.set_ylim(top=max(axis.get_ylim()[1], 1.12 * tree))
        axis.axhline(tree, color="gray", linestyle=":", linewidth=1.0, zorder=1)
        axis.annotate(
            f"Parabel {tree:.3f}", (0.99, tree), xycoords=("axes fraction", "data"), ha="right",
            va="bottom", fontsize=7, color="gray",
        )  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half of its 95 % interval by Student's t; 0 for a single value.

    Examples
    --------
    >>> [round(found, 3) for found in interval([1.0, 2.0, 3.0])]
    [2.0, 2.484]
    """
    from scipy import stats

    mean, n = sum(values) / len(values), len(values)
    if n < 2:
        return mean, 0.0
    deviation = (sum((value - mean) ** 2 for value in values) / (n - 1)) ** 0.5
    return mean, float(stats.t.ppf(0.975, n - 1)) * deviation / n**0.5


def spread(name: str, values: Sequence[float], digits: int) -> dict[str, float | None]:
    """Return the mean under a name, with half its 95 % interval; None where there is no value.

    Examples
    --------
    >>> spread("P@1", [1.0, 2.0, 3.0], 1), spread("P@1", [], 1)
    ({'P@1': 2.0, 'P@1 +-': 2.5}, {'P@1': None, 'P@1 +-': None})
    """
    mean, half = interval(values) if values else (None, None)
    found = {name: mean, f"{name} +-": half}
    return {key: value if value is None else round(value, digits) for key, value in found.items()}
