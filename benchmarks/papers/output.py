"""Command lines, CSV files and drawings that the figures have in common."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from study import DATA, RESULTS

ENTRY_INCHES = 1.8  # of a legend
BEGIN, END = "<!-- numbers: written by the script -->", "<!-- end of the numbers -->"


def arguments(
    text: str, sets: Sequence[str] = tuple(DATA), *, quick: bool = False
) -> argparse.Namespace:
    """Read the command line: the folder of the sets, which of them, and ``--quick`` where it is."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.train.txt.gz")
    parser.add_argument("--sets", type=_names, default=list(sets), help="default: %(default)s")
    parser.add_argument("--algorithms", type=_names, default=[], help="default: all")
    if quick:
        parser.add_argument("--quick", action="store_true", help="short runs; writes no result")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


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

    Examples
    --------
    >>> print("\\n".join(table_lines([{"set": "bibtex", "P@1": 0.61234, "rows": 1200}])))
    | set | P@1 | rows |
    |---|---:|---:|
    | bibtex | 0.612 | 1,200 |
    """
    numeric = [
        all(row[key] is None or isinstance(row[key], int | float) for row in rows)
        for key in rows[0]
    ]  # fmt: skip
    return [
        f"| {' | '.join(rows[0])} |",
        f"|{'|'.join('---:' if is_number else '---' for is_number in numeric)}|",
        *(f"| {' | '.join(map(_cell, row.values()))} |" for row in rows),
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 1.0 else f"{value:.1f}"
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
        "savefig.dpi": 130,
    })  # fmt: skip
    return plt


def panels(rows: int, columns: int, **options: Any) -> tuple[Any, Any]:
    """Return a drawing and its ``(rows, columns)`` panels."""
    size = (3.6 * columns, 2.7 * rows)
    return pyplot().subplots(rows, columns, figsize=size, squeeze=False, **options)


def scale_log(axis: Any) -> None:
    """Give the y axis a logarithmic scale with plain numbers."""
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


def save(figure: Any, name: str, legend_of: Any = None, columns: int = 4) -> None:
    """Write ``results/figures/NAME.png``, with one legend below all panels."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    room = 0.0
    if legend_of is not None:
        handles, labels = legend_of.get_legend_handles_labels()
        columns = min(columns, int(figure.get_size_inches()[0] / ENTRY_INCHES))
        lines = -(-len(labels) // columns)
        room = (0.12 + 0.22 * lines) / figure.get_size_inches()[1]
        figure.legend(handles, labels, loc="lower center", ncols=columns)
    figure.tight_layout(rect=(0.0, room, 1.0, 1.0))
    path = RESULTS / f"{name}.png"
    figure.savefig(path)
    print(path)
