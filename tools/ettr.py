"""Share of the time in which rows are merged under faults (ETTR): a table and a picture.

    python tools/ettr.py FILE ...

takes runs of ``benchmarks/quality/chaos.py`` from its results, with and without faults, and writes
``ettr.json``: a row for each commit and number of workers, and the runs; and ``ettr.png``: when
each run of the last commit was held up, beyond three usual pauses between merges, and when faults
struck.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from machine import RESULTS, write_result

KINDS = {"kill": ("v", "killed"), "stop": ("s", "stopped"), "scheduler": ("X", "scheduler killed")}
WHOLE = "seconds between merges"  # the first and the last among them
Row = dict[str, Any]


def summary(runs: Sequence[Row]) -> Row:
    """Return a row for runs of one commit and number of workers."""
    struck = [run for run in runs if run["faults"]]
    calm = [run["P@1"] for run in runs if not run["faults"]]
    ended = [run["P@1"] for run in struck]
    whole_s = sum(run[WHOLE] for run in struck)
    lost_s = sum(lost for run in struck for _, lost in run["held_up"])
    return {
        "commit": runs[0]["commit"],
        "workers": runs[0]["workers"],
        "runs": len(struck),
        "minutes": whole_s / 60.0,
        **{kind: sum(run[kind] for run in struck) for kind in KINDS},
        "ettr": 1.0 - lost_s / whole_s,
        "longest_s": max(run["longest_s"] for run in struck),
        "P@1 least": min(ended),
        "P@1 most": max(ended),
        "P@1 mean": statistics.mean(ended),
        "undisturbed": len(calm),
        "undisturbed P@1 least": min(calm, default=None),
        "undisturbed P@1 most": max(calm, default=None),
        "undisturbed P@1 mean": statistics.mean(calm) if calm else None,
        "load": sum(run["load"] for run in struck) / len(struck),
        "verified": all(run["verified"] and run["is_done"] for run in runs),
    }


def draw(groups: Sequence[Sequence[Row]]) -> None:
    """Draw a lane for each run under faults."""
    lanes = [[run for run in runs if run["faults"]] for runs in groups]
    heights = [len(runs) for runs in lanes]
    figure = Figure(figsize=(8.0, 0.9 + 0.24 * sum(heights)))
    panels = figure.subplots(len(lanes), 1, squeeze=False, height_ratios=heights, sharex=True)[:, 0]
    for axis, runs in zip(panels, lanes, strict=True):
        for lane, run in enumerate(runs):
            axis.barh(lane, run[WHOLE], height=0.5, color="0.82")
            spans = [(end_s - lost_s, lost_s) for end_s, lost_s in run["held_up"]]
            axis.broken_barh(spans, (lane - 0.25, 0.5), color="tab:red")
            for kind, (marker, _) in KINDS.items():
                times = [at_s for at_s, struck, _ in run["struck_at"] if struck == kind]
                axis.plot(times, [lane + 0.38] * len(times), marker, color="black", markersize=3)
        axis.set(yticks=[], ylabel=f"{runs[0]['workers']} workers", ylim=(len(runs) - 0.3, -0.7))
        axis.spines[["top", "right", "left"]].set_visible(False)
    panels[-1].set_xlabel("seconds since the first merge; each lane is a run")
    marks = [panels[0].plot([], [], marker, color="black", markersize=4, label=label)[0]
             for marker, label in KINDS.values()]  # fmt: skip
    marks.append(panels[0].barh([0], [0], color="tab:red", label="held up"))
    figure.legend(handles=marks, ncols=4, frameon=False, loc="upper center")
    figure.subplots_adjust(top=0.95, hspace=0.15)
    figure.savefig(RESULTS / "ettr.png", dpi=120, bbox_inches="tight")


def main() -> None:
    """Read, write and draw."""
    runs = [run for file in sys.argv[1:] for run in json.loads(Path(file).read_text())["rows"]]
    groups: dict[tuple[str, int], list[Row]] = {}
    for run in runs:
        groups.setdefault((run["commit"], run["workers"]), []).append(run)
    counts = sorted({run["workers"] for run in runs})
    of_all = [summary([run for run in runs if run["workers"] == count]) for count in counts]
    of_all = [{key: it for key, it in row.items() if key != "commit"} for row in of_all]
    write_result("ettr", [*map(summary, groups.values())], of_all_commits=of_all, runs=runs)
    draw([group for (commit, _), group in groups.items() if commit == runs[-1]["commit"]])


if __name__ == "__main__":
    main()
