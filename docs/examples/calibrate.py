"""The options of `daskxml simulate` that fit a real run: costs, speeds, and what messages take.

    daskxml simulate adaptive-sgd --train train.txt.gz --out runs/predicted \\
        $(python docs/examples/calibrate.py runs/first)

An option after them takes the place of the same before. How well they predict the run goes to the
standard error.

For every worker and mega-batch the history has batches, rows, non-zeros and seconds: ``busy =
(fixed * batches + per_row * rows + per_nonzero * nonzeros) / speed``. Costs, by non-negative least
squares at fixed speeds, and speeds at fixed costs alternate until neither changes; errors are
relative to the prediction, so slow workers and long mega-batches weigh no more than others. The
fastest worker has speed 1.

The time of a message is estimated from merges; the bandwidth from exchanges at every step or from
merges of different sizes, else it keeps its default.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from daskxml.config import load_run_config
from daskxml.core.errors import ModelError
from daskxml.local import CostModel, Network
from daskxml.records.run_dir import read_history

COLD = 1.5  # so much slower than usual are mega-batches in which kernels and caches warm up
MOST_ROUNDS = 200
MOST_JITTER = 0.3
MERGE_MESSAGES = 4  # one after the other: merge begun and done, commit asked and done
NORM_MESSAGES = 2  # request and answer, before the merges of Adaptive SGD


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The costs estimated from a history.

    Attributes
    ----------
    cost, network, speeds
        To simulate with.
    error
        Median deviation of a worker's busy seconds in a mega-batch from what they predict, as a
        share.
    skipped
        Mega-batches at the beginning that were left out as warm-up.
    pools
        Threads of those workers that are pools, by name.
    """

    cost: CostModel
    network: Network
    speeds: dict[str, float]
    error: float
    skipped: int
    pools: dict[str, int] = field(default_factory=dict)

    def options(self):
        """Return the options of `daskxml simulate`."""
        cost, network = self.cost, self.network
        found = {
            "cost": f"{cost.fixed_s!r},{cost.per_row_s!r},{cost.per_nonzero_s!r}",
            "jitter": f"{cost.jitter:.3f}",
            "speeds": ",".join(f"{name}={speed:.4f}" for name, speed in self.speeds.items()),
            "message": f"{network.message_s:.3g}",
            "bandwidth": f"{network.bandwidth_bytes_s:.0f}B/s",
        }
        pools = [f"--pool {name}={threads}" for name, threads in self.pools.items()]
        return " ".join([*(f"--{name} {value}" for name, value in found.items()), *pools])


def fit_run(run_dir):
    """Fit the history of the run in a directory.

    Raises
    ------
    ModelError
        If there is no run, or none that a model can be fitted to.
    """
    path = Path(run_dir)
    history = read_history(path / "history.jsonl")
    try:
        strategy = load_run_config(path / "run.toml").make_strategy()
        norms = NORM_MESSAGES if strategy.needs_norms else 0
        return fit_history(history, MERGE_MESSAGES + norms)
    except (KeyError, ValueError) as error:
        raise ModelError(
            f"{path}: no times to calibrate from ({error}); give the directory of a real run of "
            "this version with some mega-batches"
        ) from error


def fit_history(history, merge_messages=MERGE_MESSAGES):
    """Fit costs, speeds and the network.

    Parameters
    ----------
    history
        Rows of ``history.jsonl``.
    merge_messages
        Between scheduler and workers, one after the other, in a merge.

    Raises
    ------
    ValueError
        If no worker has done anything.

    Examples
    --------
    >>> def worker(updates, rows, busy_s):
    ...     return {"updates": updates, "rows": rows, "nonzeros": 5 * rows, "busy_s": busy_s}
    >>> history = [
    ...     {"workers": {"0": worker(2, 2 * n, 0.2 + 0.02 * n), "1": worker(1, n, 0.2 + 0.02 * n)},
    ...      "merge_s": 0.04, "merged_bytes": 800, "moved_bytes": 0}
    ...     for n in (10, 20, 40)
    ... ]
    >>> fitted = fit_history(history)
    >>> {name: round(speed, 3) for name, speed in fitted.speeds.items()}
    {'0': 1.0, '1': 0.5}
    >>> round(fitted.cost.batch_s(rows=30, nonzeros=150), 3), round(fitted.network.message_s, 3)
    (0.4, 0.01)
    """
    skipped = _count_cold(history)
    warm = history[skipped:]
    names, worker_ids, work, busy_s = _observations(warm)
    costs, speeds = _fit_alternately(work, busy_s, worker_ids, len(names))
    ratios = busy_s * speeds[worker_ids] / (work @ costs)
    deviations = np.log(ratios) * np.sqrt(work[:, 0])  # of a single batch
    fixed_s, per_row_s, per_nonzero_s = costs.tolist()
    cost = CostModel(
        fixed_s=fixed_s,
        per_row_s=per_row_s,
        per_nonzero_s=per_nonzero_s,
        jitter=min(float(np.sqrt(np.mean(deviations**2))), MOST_JITTER),
    )
    return Fitted(
        cost=cost,
        network=_fit_network(warm, merge_messages),
        speeds=dict(zip(names, speeds.tolist(), strict=True)),
        error=float(np.median(np.abs(ratios - 1.0))),
        skipped=skipped,
        pools={n: w["pool_threads"] for n, w in _last(history).items() if w.get("pool_threads")},
    )


def _last(history):
    """Return the last report of every worker."""
    return {name: worker for row in history for name, worker in row["workers"].items()}


def _batches(worker):
    """Return how many batches a worker did: a pool makes an update for each of its threads."""
    return -(-int(worker["updates"]) // max(1, worker.get("pool_threads", 0)))


def _count_cold(history):
    """Return how many mega-batches at the beginning took much longer a row than is usual."""
    pace = []
    for row in history:
        workers = row["workers"].values()
        rows = sum(worker["rows"] for worker in workers)
        pace.append(sum(worker["busy_s"] for worker in workers) / max(1, rows))
    usual = float(np.median(pace)) if pace else 0.0
    warm = (number for number, took_s in enumerate(pace) if took_s <= COLD * usual)
    return next(warm, 0)


def _observations(history):
    """Return worker names, and for every observation its worker, its work and its seconds."""
    found = [
        (name, [_batches(worker), worker["rows"], worker["nonzeros"]], worker["busy_s"])
        for row in history
        for name, worker in row["workers"].items()
        if worker["updates"] and worker["busy_s"] > 0.0
    ]
    if not found:
        raise ValueError("no worker has done anything")
    names = list(dict.fromkeys(name for name, _, _ in found))
    worker_ids = np.array([names.index(name) for name, _, _ in found])
    work = np.array([work for _, work, _ in found], dtype=np.float64)
    return names, worker_ids, work, np.array([busy_s for _, _, busy_s in found])


def _fit_alternately(work, busy_s, worker_ids, workers):
    """Return the three costs ``(3,)`` and the speeds ``(workers,)``."""
    speeds, expected_s = np.ones(workers), busy_s
    scale = np.maximum(work.mean(axis=0), 1e-300)
    for _ in range(MOST_ROUNDS):
        weighted = work / scale / speeds[worker_ids, None] / expected_s[:, None]
        costs = nnls(weighted, busy_s / expected_s)[0] / scale
        ratios = busy_s / (work @ costs)
        means = np.array([ratios[worker_ids == worker].mean() for worker in range(workers)])
        before, speeds = speeds, means.min() / means
        expected_s = work @ costs / speeds[worker_ids]
        if np.abs(speeds - before).max() < 1e-9:
            break
    return costs * means.min(), speeds


def _fit_network(history, messages):
    """Find the bandwidth, if the history has it, and the time of a message."""
    merges = [row for row in history if row["merge_s"] > 0.0 and len(row["workers"]) > 1]
    if not merges:
        return Network()
    took_s = np.array([row["merge_s"] for row in merges])
    sent = np.array([row["merged_bytes"] / len(row["workers"]) for row in merges])
    known = _bandwidth_of_steps(merges) or _bandwidth_of_merges(took_s, sent)
    bandwidth = known or Network().bandwidth_bytes_s
    rest_s = float(np.median(took_s - sent / bandwidth))
    return Network(bandwidth_bytes_s=bandwidth, message_s=max(0.0, rest_s) / messages)


def _bandwidth_of_steps(history):
    """Return what workers that exchange arrays at every step reach; 0 where they do not.

    What they wait for each other counts as well: their steps are as long as they are.
    """
    stepping = [row for row in history if row["moved_bytes"]]
    moved = sum(row["moved_bytes"] / len(row["workers"]) for row in stepping)
    rest_s = sum(row["train_s"] - _busiest_s(row) for row in stepping)
    return float(moved / rest_s) if rest_s > 0.0 else 0.0


def _busiest_s(row):
    return max(float(worker["busy_s"]) for worker in row["workers"].values())


def _bandwidth_of_merges(took_s, sent):
    """Return the estimate from merges of different sizes; 0 where all are of one size."""
    if not sent.min() > 0 or sent.max() < 2.0 * sent.min():
        return 0.0
    terms = np.stack([np.ones(len(sent)), sent / sent.mean()], axis=1)
    slope = nnls(terms, took_s)[0][1] / sent.mean()
    return float(1.0 / slope) if slope > 0.0 else 0.0


if __name__ == "__main__":
    found = fit_run(sys.argv[1])
    print(found.options())
    print(
        f"predicts the run within {found.error:.1%} (median); {found.skipped} cold mega-batches "
        "left out",
        file=sys.stderr,
    )
