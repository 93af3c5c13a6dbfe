"""What `quickstart` reaches on the test rows and how long it takes, beside `best`.

    python benchmarks/quality/quickstart.py FOLDER [--sets bibtex,delicious] [--workers 2]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. `quickstart` is trained here, by
the command as in `real_data.py`; the figures of `best` are those of ``results/quality.json``, whose
machine stands beside them. Wanted are at most two points of P@1 less, in a third of the time.
Writes ``results/quickstart.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from quality import SETS
from real_data import PIPELINES, measure

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, write_result


def beside(row: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """Return a measured row with the figures of `best` on the same set."""
    return {
        **row,
        "best P@1": best["P@1"],
        "points less": 100 * (best["P@1"] - row["P@1"]),
        **{f"share of best's {key}": row[key] / best[key] for key in ("train_s", "total_s")},
    }


def main() -> None:
    """Measure every set and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    options.run_file, options.set = PIPELINES / "quickstart.toml", ["--set", "cluster.threads=1"]
    quality = json.loads((RESULTS / "quality.json").read_text())
    best = {row["data"]: row for row in quality["rows"]}
    rows = [
        beside(measure(name, options.folder, options), best[name])
        for name in options.sets.split(",")
    ]
    write_result("quickstart", rows, workers=options.workers, best_on=quality["machine"]["cpu"])


if __name__ == "__main__":
    main()
