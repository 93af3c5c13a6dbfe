"""The size of the next lease of a worker: weighted factoring with a careful tail.

A lease is a number of batches that one worker steps through without asking. Long leases cost few
messages, short ones leave little to wait for at the merge. Weighted factoring (Hummel, Schmidt,
Uma and Wein, "Load-sharing in heterogeneous systems via weighted factoring", SPAA 1996) gives each
worker its share, by measured throughput, of half of what is left: leases shrink geometrically as
the mega-batch runs out. What happens at the very end is the policy's ``tail``:

==========  ====================================================================================
``sooner``  a batch goes to a worker only if the merge comes sooner for it, so that the merge
            never waits for one batch on a slow worker
``shares``  each worker has its share of the whole mega-batch, to the row: equal workers make
            equally many batches, and all end at the same time. Its last batch is what is left of
            its share, and it is in a lease with others. A worker that is through, although
            rows are left, is ahead of the others: it helps as under ``sooner``, where the merge
            comes sooner by more than messages take. Shares of less than an eighth of a batch are
            left to such a worker, too
``any``     whoever is free gets the next batch
==========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

IN_FLIGHT = 2  # leases per worker: one that runs, one that is queued
LONGEST_LEASE_S = 1.0  # keeps losses small, and stops prompt
SHORTEST_LEASE_S = 0.02  # about as long as the next one is on its way
_HAIR = 1e-3  # rows
_LEAST_SHARE = 1 / 8  # of a batch; less than that is no batch of its own


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """Length and number of the leases of a worker.

    Attributes
    ----------
    longest_s
        Seconds of work in a lease, at most; less than a batch takes means one batch.
    in_flight
        Leases that a worker may have at a time.
    tail
        Who gets the last rows of a mega-batch; see the head of this module.
    """

    longest_s: float = LONGEST_LEASE_S
    in_flight: int = IN_FLIGHT
    tail: Literal["sooner", "shares", "any"] = "sooner"


DEFAULT_POLICY = LeasePolicy()
BY_SHARES = LeasePolicy(tail="shares")
ONE_BATCH = LeasePolicy(longest_s=0.0, in_flight=1, tail="any")


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a worker, as far as leases depend on it.

    Attributes
    ----------
    batch_rows
        Rows of one of its batches.
    rows_per_s
        Measured throughput; 0 before the first measurement.
    leased_rows
        Rows leased and not yet reported.
    leases
        Leases not yet reported.
    done_rows
        Rows done in this mega-batch; of a worker that came late, those of its absence as well.
    share
        By which shares are divided, a throughput; 0: by ``rows_per_s``.
    """

    batch_rows: int
    rows_per_s: float
    leased_rows: int
    leases: int
    done_rows: float = 0
    share: float = 0.0


def next_lease_rows(
    worker: str,
    loads: Mapping[str, Load],
    remaining_rows: int,
    policy: LeasePolicy = DEFAULT_POLICY,
) -> int:
    """Return how many of the ``remaining_rows`` to lease to ``worker`` now; 0 for none.

    Examples
    --------
    Two workers, one twice as fast, with 1,000 rows left: the fast one gets two thirds of half.

    >>> loads = {"a": Load(10, 200.0, 0, 0), "b": Load(10, 100.0, 0, 0)}
    >>> next_lease_rows("a", loads, 1000), next_lease_rows("b", loads, 1000)
    (200, 100)

    The last batch is not for the slow worker, if the fast one ends both sooner.

    >>> loads = {"a": Load(10, 200.0, 10, 1), "b": Load(10, 20.0, 0, 0)}
    >>> next_lease_rows("a", loads, 10), next_lease_rows("b", loads, 10)
    (10, 0)

    By shares, two equal workers of which one has done a batch more end with equally many rows.

    >>> loads = {"a": Load(10, 100.0, 10, 1, 10), "b": Load(10, 100.0, 10, 1, 0)}
    >>> [next_lease_rows(name, loads, 15, BY_SHARES) for name in "ab"]
    [3, 13]
    """
    load = loads[worker]
    if remaining_rows <= 0 or load.leases >= policy.in_flight:
        return 0
    if policy.tail == "any":
        return min(remaining_rows, load.batch_rows)
    if policy.tail == "shares" and load.rows_per_s > 0.0:
        return _lease_of_share(worker, loads, remaining_rows, policy.longest_s)
    batches = _whole_batches(load, loads, remaining_rows, policy.longest_s)
    if not _ends_sooner_with(worker, loads, remaining_rows):
        return 0
    return min(remaining_rows, batches * load.batch_rows)


def _lease_of_share(
    worker: str, loads: Mapping[str, Load], remaining_rows: int, longest_s: float
) -> int:
    load = loads[worker]
    known = load.share or load.rows_per_s
    shares = {name: other.share or other.rows_per_s or known for name, other in loads.items()}
    total = sum(shares.values())
    everything = remaining_rows + sum(
        other.leased_rows + other.done_rows for other in loads.values()
    )
    # Whole batches of exactly such a share are whole in floats, too.
    left = {
        name: everything * shares[name] / total + _HAIR - other.leased_rows - other.done_rows
        for name, other in loads.items()
    }
    own = left[worker]
    longest = load.rows_per_s * longest_s
    wanted = min(max(own / 2.0, load.rows_per_s * SHORTEST_LEASE_S), longest)
    if own >= _LEAST_SHARE * load.batch_rows:
        rows = load.batch_rows * max(1, int(wanted / load.batch_rows))
        is_rest = own <= longest and own - rows < load.batch_rows
        return min(remaining_rows, ceil(own - 2.0 * _HAIR) if is_rest or rows > own else rows)
    others = (left[name] >= _LEAST_SHARE * other.batch_rows for name, other in loads.items())
    margin_s = SHORTEST_LEASE_S if any(others) else 0.0
    if load.leases or not _ends_sooner_with(worker, loads, remaining_rows, margin_s):
        return 0
    return min(remaining_rows, load.batch_rows)


def _whole_batches(
    load: Load, loads: Mapping[str, Load], remaining_rows: int, longest_s: float
) -> int:
    if load.rows_per_s <= 0.0:
        return 1  # unknown: ask for little, learn much
    total = sum(other.rows_per_s or load.rows_per_s for other in loads.values())
    share = remaining_rows * load.rows_per_s / total
    # A worker's share of all that is not done yet, less what it holds: where a mega-batch is so
    # short that all of it is leased at once, the first to be asked is not to hold more than that.
    pending_rows = remaining_rows + sum(other.leased_rows for other in loads.values())
    fair_rows = pending_rows * load.rows_per_s / total - load.leased_rows
    shortest = min(share, fair_rows, load.rows_per_s * SHORTEST_LEASE_S)
    longest = load.rows_per_s * longest_s
    return max(1, int(min(max(share / 2.0, shortest), longest) / load.batch_rows))


def _ends_sooner_with(
    worker: str, loads: Mapping[str, Load], remaining_rows: int, margin_s: float = 0.0
) -> bool:
    """Whether one more batch here ends before the others could have done all that is left."""
    load = loads[worker]
    others = [other for name, other in loads.items() if name != worker]
    if not others or load.rows_per_s <= 0.0 or any(o.rows_per_s <= 0.0 for o in others):
        return True
    ends_s = (load.leased_rows + min(load.batch_rows, remaining_rows)) / load.rows_per_s
    # Whole batches: a share of a row on every device is no way to end sooner. A hair less time
    # than `ends_s`, so that of equal workers none leaves the batch to the other.
    before_s = (ends_s + margin_s) * (1.0 - 1e-9)
    return sum(_rows_before(before_s, o, remaining_rows) for o in others) < remaining_rows


def _rows_before(time_s: float, load: Load, remaining_rows: int) -> int:
    """Rows in whole batches that a worker could add to its leases in that time."""
    batch = min(load.batch_rows, remaining_rows)
    return max(0, int((time_s * load.rows_per_s - load.leased_rows) / batch)) * batch
