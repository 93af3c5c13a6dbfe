"""The columns that the charts show, from what is remembered of a run.

Where there is a line for each worker, a column is an array with a row for each worker, and NaN
where that one took no part, which interrupts its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskxml.dashboard.record import FIGURES, Memory, Record
from daskxml.dashboard.thinning import Thinned
from daskxml.runtime.activity import Work
from daskxml.strategies.megabatch import natural_order

Columns = dict[str, Any]
Floats = NDArray[np.floating[Any]]

LINES = 32  # workers whose lines are drawn
PIECES = 2000  # of work that are drawn
MEGABATCHES, LONGEST_S = 30, 60.0  # of work that are shown
MIB = 2.0**20
WEIGHT = FIGURES.index("weight")
WORK = ("training", "training together", "merge", "evaluation", "checkpoint", "start")
# What a worker is asked, by the name of its task on Dask's dashboard, to its place in ``WORK``.
SHOWN = {"lease": 0, "gang": 1, "merge": 2, "eval": 3, "save": 4, "start": 5, "load": 5}


def worker_names(record: Record) -> list[str]:
    """Return the workers that have lines, in natural order; those that are gone give way."""
    known = _known(record)
    present = [name for name in known if name not in record.lost]
    gone = [name for name in known if name in record.lost]
    return sorted((present + gone)[:LINES], key=natural_order)


def worker_count(record: Record) -> int:
    """Return how many workers there are that could have lines."""
    return max(len(_known(record)), len(record.row.get("workers", ())))


def _known(record: Record) -> dict[str, None]:
    known = dict.fromkeys(map(str, record.started.get("workers", ())))
    for point in record.megabatches:
        known |= dict.fromkeys(point.workers)
    return known


def learning_columns(record: Record) -> Columns:
    """Return ``megabatch``, ``wall_s`` and ``loss`` of the mega-batches."""
    points = list(record.megabatches)
    return {
        "megabatch": np.array([point.megabatch for point in points], dtype=np.float64),
        "wall_s": np.array([point.wall_s for point in points], dtype=np.float64),
        "loss": np.array([point.loss for point in points], dtype=np.float64),
        "sent_mib": np.array([point.sent_bytes / MIB for point in points], dtype=np.float64),
    }


def score_columns(record: Record, metrics: Sequence[str]) -> Columns:
    """Return ``megabatch``, ``wall_s`` and a column for each metric, of the evaluations."""
    scores = list(record.scores)
    columns = {
        "megabatch": np.array([score.megabatch for score in scores], dtype=np.float64),
        "wall_s": np.array([score.wall_s for score in scores], dtype=np.float64),
    }
    for name in metrics:
        values = [score.metrics.get(name, np.nan) for score in scores]
        columns[name] = np.array(values, dtype=np.float64)
    return columns


def worker_columns(record: Record, workers: Sequence[str]) -> Columns:
    """Return ``(workers, points)`` arrays: ``xs`` (mega-batches) and each of ``FIGURES``."""
    points = list(record.megabatches)
    figures = np.full((len(FIGURES), len(workers), len(points)), np.nan, dtype=np.float32)
    places = {name: place for place, name in enumerate(workers)}
    for number, point in enumerate(points):
        rows = [row for row, name in enumerate(point.workers) if name in places]
        columns = [places[point.workers[row]] for row in rows]
        figures[:, columns, number] = point.figures[rows].T
    megabatches = [[point.megabatch for point in points]] * len(workers)
    xs = np.array(megabatches, dtype=np.float32).reshape(len(workers), len(points))
    return {"worker": list(workers), "xs": xs, **dict(zip(FIGURES, figures, strict=True))}


def perturbed_columns(record: Record) -> Columns:
    """Return ``megabatch`` of the merges whose weights were perturbed; ``level``: where to mark."""
    points = list(record.megabatches)
    found = np.array([point.megabatch for point in points if point.perturbed], dtype=np.float64)
    highest = max((float(point.figures[:, WEIGHT].max(initial=0)) for point in points), default=0.0)
    return {"megabatch": found, "level": np.full(len(found), highest / 30)}


def memory_columns(record: Record, workers: Sequence[str]) -> Columns:
    """Return ``(workers, samples)`` arrays: ``xs`` (seconds since the start), and three more.

    ``host_mib`` and ``device_mib`` are in use, ``sent_mib_per_s`` is what went to other workers.
    """
    samples = list(record.memory)
    at_s = np.array([sample.at_s - record.began_s for sample in samples], dtype=np.float64)
    sent = _by_worker(samples, workers, "sent_bytes")
    took_s = np.maximum(np.diff(at_s), 1e-9)
    rates = np.full_like(sent, np.nan)
    rates[:, 1:] = np.diff(sent, axis=1) / took_s
    found = {
        "xs": np.broadcast_to(at_s, (len(workers), len(samples))),
        "host_mib": _by_worker(samples, workers, "host_bytes") / MIB,
        "device_mib": _by_worker(samples, workers, "device_bytes") / MIB,
        "sent_mib_per_s": rates / MIB,
    }
    return {"worker": list(workers), **{name: it.astype(np.float32) for name, it in found.items()}}


def _by_worker(samples: Sequence[Memory], workers: Sequence[str], what: str) -> Floats:
    """Return ``(workers, samples)`` float64."""
    places = {name: place for place, name in enumerate(workers)}
    found = np.full((len(workers), len(samples)), np.nan)
    for number, sample in enumerate(samples):
        for name, value in zip(sample.workers, getattr(sample, what), strict=True):
            if name in places:
                found[places[name], number] = value
    return found


def has_device(memory: Thinned[Memory]) -> bool:
    """Whether any worker has told of a device's memory."""
    return any(np.isfinite(sample.device_bytes).any() for sample in memory)


def window_s(record: Record) -> float:
    """Return how many seconds of work are shown: some mega-batches, from 2 s to a minute."""
    row = record.row
    took_s = row["train_s"] + row["merge_s"] + row["eval_s"] if row else LONGEST_S
    return float(np.clip(MEGABATCHES * took_s, 2.0, LONGEST_S))


def work_columns(
    work: Iterable[Work], workers: Sequence[str], end_s: float, long_s: float
) -> Columns:
    """Return bars of the ``long_s`` seconds before ``end_s``.

    Columns ``place`` (of the worker), ``left`` and ``right`` (seconds before the end, so negative)
    and ``what`` (place in ``WORK``).

    Examples
    --------
    >>> bars = work_columns([Work("a", "eval", 5.0, 8.0)], ["b", "a"], 10.0, 4.0)
    >>> {name: column.tolist() for name, column in bars.items()}
    {'place': [1.0], 'left': [-4.0], 'right': [-2.0], 'what': [3]}
    """
    places = {name: place for place, name in enumerate(workers)}
    found = [
        piece
        for piece in work
        if piece.what in SHOWN and piece.worker in places and piece.end_s > end_s - long_s
    ][-PIECES:]
    spans = np.array([(piece.begin_s, piece.end_s) for piece in found]).reshape(-1, 2) - end_s
    spans = np.clip(spans, -long_s, 0.0)
    return {
        "place": np.array([places[piece.worker] for piece in found], dtype=np.float64),
        "left": spans[:, 0],
        "right": spans[:, 1],
        "what": np.array([SHOWN[piece.what] for piece in found], dtype=np.uint8),
    }
