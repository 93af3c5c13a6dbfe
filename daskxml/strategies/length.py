"""How long a mega-batch is where the run file leaves that open (``megabatch_batches = "auto"``).

Around each merge workers wait: for the last of them, for the merge itself, for their next lease.
That takes about the same time however many rows there are between two merges, so a mega-batch is
doubled until it takes at most `SHARE` of the time, and halved once half the rows would do. A worker
alone waits for nobody, and keeps `FIRST` batches: its run is the same each time.

A momentum g of merges is that of `FIRST` batches: where there are m times as many, a merge has g^m,
so that past changes fade by rows. It amplifies the changes less, by 1 / (1 - g^m) in the long run,
which the learning rate makes up for: `gain`.
"""

from __future__ import annotations

from dataclasses import replace

from daskxml.strategies.batches import FIRST, MOST
from daskxml.strategies.state import MegabatchState

SHARE = 0.05  # of the time, for waiting and merging
_NEWEST = 0.25  # weight of the last mega-batch in the measured wait
_SURPRISE = 4.0  # times the measured wait that one counts, at most: a worker may have been frozen


def gain(momentum: float, times: float) -> float:
    """Return the learning rate's factor for mega-batches ``times`` as long as `FIRST` batches.

    Examples
    --------
    >>> gain(0.9, 1.0), round(gain(0.9, 4.0), 3), gain(0.0, 4.0)
    (1.0, 3.439, 1.0)
    """
    return (1.0 - momentum**times) / (1.0 - momentum)


def with_length(state: MegabatchState, took_s: float, batch_rows: int) -> MegabatchState:
    """Return the state after a merge, with the next mega-batch's length.

    Parameters
    ----------
    took_s
        From the mega-batch's beginning to the end of its merge; 0: unknown.
    batch_rows
        Rows of the largest batch, in which the length is counted.

    Examples
    --------
    Two workers of 10,000 rows a second that wait for 16 ms around a merge of 3,200 rows:

    >>> from daskxml.strategies.state import WorkerState
    >>> worker = WorkerState(batch_size=64, rows=1600, busy_s=0.16)
    >>> state = MegabatchState(
    ...     remaining_rows=0, batches=50, merging=("a", "b"), members={"a": worker, "b": worker})
    >>> with_length(state, 0.176, 64).batches
    100
    """
    done = [state.members[name] for name in state.merging]
    done = [w for w in done if w.rows and w.busy_s and not (w.came_late or w.age)]
    if len(done) < 2 or took_s <= 0.0:
        return state
    busy_s = sum(worker.busy_s for worker in done) / len(done)
    waited_s = max(0.0, took_s - busy_s)
    known_s = state.waited_s or waited_s
    known_s += _NEWEST * (min(waited_s, _SURPRISE * known_s) - known_s)
    rows_per_s = sum(worker.rows for worker in done) / busy_s
    wanted = known_s * (1.0 / SHARE - 1.0) * rows_per_s / batch_rows
    batches = state.batches
    if wanted > batches:
        batches = min(2 * batches, MOST)
    elif wanted < batches / 2.5:
        batches = max(batches // 2, FIRST)
    return replace(state, batches=batches, waited_s=known_s)
