"""What a run is and how it stands, in a few words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from daskxml.config import RunConfig
from daskxml.dashboard.record import Record


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A run at a glance.

    Attributes
    ----------
    run, title, strategy, data
        Its id, its name, the algorithm, and what it learns from.
    state
        loading, training, merging, evaluating, waiting for workers, ..., or how it ended.
    progress
        From 0 to 1; None if nothing bounds the run but a target.
    limit
        How far it has come towards the limit that is nearest, in words.
    elapsed_s, left_s
        Since the start; until the end as far as can be told, else None.
    rows_per_s
        Of the last mega-batch, with its merge.
    best
        The best value of the first metric, in words; "" before there is one.
    """

    run: str
    title: str
    strategy: str
    data: str
    state: str
    progress: float | None
    limit: str
    elapsed_s: float
    left_s: float | None
    rows_per_s: float
    best: str


def headline(record: Record, now_s: float) -> Headline:
    """Return a run's headline at a moment (seconds since the epoch)."""
    end_s = record.ended_s or now_s
    since_row_s = max(0.0, end_s - record.row_at_s)
    progress, limit = progress_of(record.config, record.row, record.status)
    is_going = not record.is_over and bool(record.row)
    return Headline(
        run=record.run,
        title=title(record),
        strategy=record.config.strategy_name,
        data=data_in_words(record.config, record.started),
        state=record.ending or state_of(record),
        progress=progress,
        limit=limit,
        elapsed_s=end_s - record.began_s,
        left_s=time_left_s(progress, record.row["wall_s"] + since_row_s) if is_going else None,
        rows_per_s=rows_per_s(record.row),
        best=best_in_words(record),
    )


def title(record: Record) -> str:
    """Return a run's name, or that of its algorithm."""
    return record.config.run.name or record.config.strategy_name


def state_of(record: Record) -> str:
    """Return what a run does now, in a word or two."""
    return str(record.status["state"])


def rows_per_s(row: Mapping[str, Any]) -> float:
    """Return a mega-batch's rows over its time in training and merging; 0 without a row.

    Examples
    --------
    >>> rows_per_s({"train_s": 1.5, "merge_s": 0.5, "workers": {"a": {"rows": 60}}})
    30.0
    """
    spent_s = row["train_s"] + row["merge_s"] if row else 0.0
    return sum(worker["rows"] for worker in row["workers"].values()) / spent_s if spent_s else 0.0


def progress_of(
    config: RunConfig, row: Mapping[str, Any], status: Mapping[str, Any]
) -> tuple[float | None, str]:
    """Return how far a run has come towards its nearest limit, as a share and in words.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> config = load_run_config({"training": {"epochs": 4, "megabatches": 100}})
    >>> progress_of(config, {"megabatch": 10, "wall_s": 5.0}, {"epoch": 1.0})
    (0.25, 'epoch 1.00 of 4')
    """
    limits, done = config.training, int(row.get("megabatch", 0))
    epoch = max(status.get("epoch", 0.0), row.get("epoch", 0.0))
    minutes = row.get("wall_s", 0.0) / 60
    shares = []
    if limits.epochs:
        shares.append((epoch / limits.epochs, f"epoch {epoch:.2f} of {limits.epochs:g}"))
    if limits.megabatches:
        text = f"mega-batch {done:,} of {limits.megabatches:,}"
        shares.append((done / limits.megabatches, text))
    if limits.minutes:  # evaluation is in the row's time but not in the limit: an upper bound
        text = f"minute {minutes:.1f} of {limits.minutes:g}"
        shares.append((minutes / limits.minutes, text))
    if not shares:
        return None, f"epoch {epoch:.2f}, until {limits.target_metric} is {limits.target:g}"
    share, text = max(shares)
    return min(1.0, share), text


def time_left_s(progress: float | None, elapsed_s: float) -> float | None:
    """Return the seconds to the end if it goes on as it did; None while that cannot be told.

    Examples
    --------
    >>> time_left_s(0.25, 30.0)
    90.0
    """
    if progress is None or progress <= 0.0:
        return None
    return elapsed_s * (1.0 - progress) / progress


def data_in_words(config: RunConfig, started: Mapping[str, Any]) -> str:
    """Say what a run learns from: the name of its data set, or of its files, and their size."""
    names = [PurePosixPath(path).name for path in config.data.train]
    name = config.data.card or (names[0] if names else "matrices")
    more = f" and {len(names) - 1} more" if len(names) > 1 and not config.data.card else ""
    if not started:
        return name + more
    return (
        f"{name}{more}: {started['rows']:,} rows, {started['features']:,} features, "
        f"{started['labels']:,} labels"
    )


def best_in_words(record: Record) -> str:
    """Say what the best evaluation was, by the metric that the run has as its target."""
    wanted = record.config.training.target_metric
    name = wanted if wanted in record.best else next(iter(record.best), "")
    if not name:
        return ""
    value, megabatch = record.best[name]
    return f"{name} {value:.4f} (mega-batch {megabatch:,})"


def duration(seconds: float) -> str:
    """Return a time as one reads it.

    Examples
    --------
    >>> duration(7.2), duration(83), duration(7260)
    ('7 s', '1 min 23 s', '2 h 01 min')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
