"""Quality: what `pipelines/best.toml` reaches on the test rows, beside the bars and other tools.

For each set, in a folder with ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``, the installed command
trains on local workers of one thread each; P@k is counted a second time from the predictions, as
in `real_data.py`. `BARS` are what the run file is to reach. `TOOLS` are measured figures of other
tools on the same rows: two cores, default parameters, one run each.

    python benchmarks/quality/quality.py FOLDER [--sets bibtex,delicious] [--workers 2]

Rows of other sets stay in the results where the same run file, with as many workers, made them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real_data import PIPELINES, measure

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, write_result

RUN_FILE = PIPELINES / "best.toml"
SETS = "bibtex,delicious,stackex4-2k,citeuliket-8k,nvd-product"
BARS: dict[str, dict[str, float]] = {
    "bibtex": {"P@1": 0.636, "P@3": 0.394, "P@5": 0.291},
    "delicious": {"P@1": 0.675, "P@3": 0.609, "P@5": 0.564},
    "stackex4-2k": {"P@1": 0.65},
    "nvd-product": {"P@1": 0.75},
}
# P@1, P@3, P@5 in percent and the seconds of training
TOOLS: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "omikuji 0.5.2 (Parabel)": {
        "bibtex": (63.5, 38.7, 28.1, 0.8),
        "delicious": (66.9, 60.2, 55.7, 5),
        "stackex4-2k": (66.2, 43.9, 32.0, 5),
        "citeuliket-8k": (62.3, 47.0, 38.3, 7),
        "nvd-product": (77.0, 38.6, 26.4, 8),
    },
    "PECOS 1.2.8 (XR-Linear)": {
        "bibtex": (52.5, 31.3, 22.8, 0.4),
        "delicious": (58.4, 54.4, 50.5, 6),
        "stackex4-2k": (65.7, 43.2, 31.4, 2),
        "citeuliket-8k": (62.3, 46.4, 37.5, 3),
        "nvd-product": (78.3, 38.9, 26.5, 4),
    },
    "napkinXC 0.7.2 (PLT)": {
        "bibtex": (63.3, 39.2, 28.7, 0.6),
        "delicious": (66.8, 60.1, 55.5, 5),
        "stackex4-2k": (63.6, 42.4, 31.1, 4),
        "citeuliket-8k": (61.1, 45.2, 36.8, 7),
        "nvd-product": (72.5, 37.3, 25.7, 9),
    },
    "PyTorch MLP, 512 hidden units": {  # nvd-product: 256 of them, softmax
        "bibtex": (63.6, 39.4, 29.1, 4),
        "delicious": (67.5, 60.9, 56.4, 37),
        "stackex4-2k": (64.6, 42.5, 31.0, 47),
        "citeuliket-8k": (58.6, 42.7, 34.0, 54),
        "nvd-product": (72.8, 36.3, 25.0, 182),
    },
}


def missed_bars(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the bars of a set that were not reached.

    Examples
    --------
    >>> missed_bars("bibtex", {"P@1": 0.64, "P@3": 0.39, "P@5": 0.3})
    ['P@3 0.3900 < 0.394']
    """
    bars = BARS.get(name, {})
    return [f"{key} {found[key]:.4f} < {bar}" for key, bar in bars.items() if found[key] < bar]


def other_tools(name: str) -> dict[str, dict[str, float]]:
    """Return the figures of other tools on a set, in the units of our own.

    Examples
    --------
    >>> other_tools("bibtex")["napkinXC 0.7.2 (PLT)"]
    {'P@1': 0.633, 'P@3': 0.392, 'P@5': 0.287, 'train_s': 0.6}
    """
    keys = ("P@1", "P@3", "P@5")
    table = {}
    for tool, sets in TOOLS.items():
        if name in sets:
            *precision, train_s = sets[name]
            shares = {key: round(p / 100, 3) for key, p in zip(keys, precision, strict=True)}
            table[tool] = {**shares, "train_s": train_s}
    return table


def with_bars(row: dict[str, Any]) -> dict[str, Any]:
    """Return a measured row with the bars and the best of the other tools."""
    name = row["data"]
    best = max((tool["P@1"] for tool in other_tools(name).values()), default=None)
    missed = missed_bars(name, row)
    return {**row, "bar P@1": BARS.get(name, {}).get("P@1"), "best other P@1": best,
            "missed": "; ".join(missed) or "none"}  # fmt: skip


def kept_rows(setting: Mapping[str, str], names: list[str]) -> list[dict[str, Any]]:
    """Return earlier rows of the same setting, except of the sets that are measured now."""
    path = RESULTS / "quality.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    if any(earlier.get(key) != value for key, value in setting.items()):
        return []
    return [row for row in earlier["rows"] if row["data"] not in names]


def main() -> None:
    """Measure every set and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--run-file", type=Path, default=RUN_FILE)
    options = parser.parse_args()
    options.set = ["--set", "cluster.threads=1"]
    names = options.sets.split(",")
    digest = hashlib.sha256(options.run_file.read_bytes()).hexdigest()
    setting = {
        "run_file": options.run_file.name, "sha256": digest, "workers": options.workers,
    }  # fmt: skip
    rows = kept_rows(setting, names)
    for name in names:  # written after each set: the last takes minutes
        rows.append(with_bars(measure(name, options.folder, options)))
        tools = {row["data"]: other_tools(row["data"]) for row in rows}
        write_result("quality", rows, **setting, bars=BARS, other_tools=tools)


if __name__ == "__main__":
    main()
