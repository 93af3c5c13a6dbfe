"""The tables of a report: what runs reached, where their settings differ, and CSV of it all."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.errors import ModelError
from daskxml.reports.figures import phases
from daskxml.reports.runs import Row, RunRecord
from daskxml.reports.targets import elapsed, reach

Cells = dict[str, Any]
_OWN_NAMES = ("run.name",)  # settings that every run has its own of


def summary(runs: Sequence[RunRecord], metric: str, level: float | None) -> list[Cells]:
    """Return a row for every run: how it ended, how far it came, and when it reached a level.

    Seconds are of training and merging; ``wall_s`` has evaluation in it. What a run does not have
    is None.
    """
    return [_summary_row(run, metric, level) for run in runs]


def _summary_row(run: RunRecord, metric: str, level: float | None) -> Cells:
    last = run.history[-1] if run.history else {}
    train_s = elapsed(run.history)[-1] if run.history else 0.0
    spent = phases(run)
    training_s = spent["computing"] + spent["waiting"]
    top = reach(run.history, metric, float("inf"))
    reached = reach(run.history, metric, level) if level is not None else None
    is_reached = reached is not None and reached.is_reached
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
        "best": top.value if top else None,
        "reached_s": reached.train_s if reached and is_reached else None,
        "reached_rows": reached.rows if reached and is_reached else None,
        "reached_megabatches": reached.megabatch if reached and is_reached else None,
    }


def metrics_table(runs: Sequence[RunRecord]) -> list[Cells]:
    """Return a row for every metric, with the last value of each run by the run's name."""
    names = dict.fromkeys(name for run in runs for name in run.metrics if "@" in name)
    return [{"metric": n, **{run.name: run.metrics.get(n) for run in runs}} for n in names]


def differences(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all runs, with each run's value.

    Examples
    --------
    >>> from pathlib import Path
    >>> first, second = ({"optimizer": {"name": n}, "run": {"seed": 0}} for n in ("sgd", "adam"))
    >>> differences([RunRecord(name="a", directory=Path(), config=first),
    ...              RunRecord(name="b", directory=Path(), config=second)])
    {'optimizer.name': ['sgd', 'adam']}
    """
    flat = [flatten(run.config) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    values = {key: [settings.get(key) for settings in flat] for key in keys}
    return {
        key: found
        for key, found in values.items()
        if key not in _OWN_NAMES and any(value != found[0] for value in found)
    }


def flatten(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings by ``section.key``.

    Examples
    --------
    >>> flatten({"run": {"seed": 3}, "model": {"hidden": [8]}})
    {'run.seed': 3, 'model.hidden': [8]}
    """
    pairs = ((name, key, table[key]) for name, table in config.items() for key in table)
    return {f"{name}.{key}": value for name, key, value in pairs}


# -------------------------------------------------------------------------------- CSV


def history_rows(runs: Sequence[RunRecord]) -> list[Cells]:
    """Return a row for every mega-batch of every run, with all metrics that any run has."""
    names = dict.fromkeys(n for run in runs for row in run.history for n in row["metrics"])
    metrics = [name for name in names if "@" in name]  # and not how many rows were scored
    return [
        _history_row(run, row, until_s, metrics)
        for run in runs
        for row, until_s in zip(run.history, elapsed(run.history), strict=True)
    ]


def _history_row(run: RunRecord, row: Row, until_s: float, metrics: Sequence[str]) -> Cells:
    plain = ("rows", "epoch", "wall_s", "train_s", "merge_s", "eval_s", "loss", "training_loss")
    moved = ("merged_bytes", "moved_bytes", "perturbed")
    return {
        "run": run.name,
        "megabatch": row["megabatch"],
        "train_and_merge_s": until_s,
        **{key: row.get(key) for key in (*plain, *moved)},
        **{name: row["metrics"].get(name) for name in metrics},
    }


def worker_rows(runs: Sequence[RunRecord]) -> list[Cells]:
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
    """Write rows that have the same columns; what is None is an empty field.

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
