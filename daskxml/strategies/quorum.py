"""Merges by a quorum: who is waited for, and what becomes of a worker that comes late.

A worker is *in* when nothing that it was given is under way. A merge begins when no rows are left
to give out and all are in; with a quorum below 1 also without some of them: once that share of the
workers is in and a grace is over, and a multiple of the grace later without a quorum. Nobody waits
for a worker that the last merge began without. The session measures the grace: it is told to by
`Wait`, and answers with `GraceOver`.

=========  ===============  ==================================================================
worker     fields           what happens
=========  ===============  ==================================================================
fresh      lag 0, age 0     it is leased rows; its replica began as the global model
late       lag above 0      the merges since its base; what it was leased goes on, and nothing is
                            added to that
back       late, no lease   `Rebase`: what it changed since its base is added to the present global
                            model; then `WorkerJoined`
rejoined   lag 0, age       it is leased rows again; all that it did since its oldest step in no
           above 0          merge, ``age`` merges ago, enters the next one with what it changed
given up   is_given_up      `GiveUp`: after `STALENESS` merges, or where there is nothing else left
                            to do, its rows are done again by others, and it comes back with none
=========  ===============  ==================================================================

A worker that joins is the same with no change, and one that is lost is given up for good. The idea
of a quorum and a grace is that of Decoupled DiLoCo (Google, 2026, arXiv 2604.21428); there late
changes are weighed by tokens, here every row counts once, in the merge that its worker enters.
"""

from __future__ import annotations

import math
from dataclasses import replace

from daskxml.strategies.protocol import GiveUp, Rebase, Wait
from daskxml.strategies.state import MegabatchState, present

STALENESS = 3  # merges that a worker's oldest step may miss
_LEAST_S = 0.25


def grace_s(since_begin_s: float, given_s: float | None, *, has_quorum: bool) -> float:
    """Return how long to wait for others, once no rows are left to give out.

    Parameters
    ----------
    since_begin_s
        Seconds since the mega-batch began.
    given_s
        `[combine] grace`; None stands for a quarter of the mega-batch, and at least a quarter of a
        second, so that no scheduler's hiccup makes a worker late.
    has_quorum
        Whether a quorum is in; else the wait is four times as long.

    Examples
    --------
    >>> grace_s(8.0, None, has_quorum=True), grace_s(8.0, 0.5, has_quorum=False)
    (2.0, 2.0)
    """
    grace = max(_LEAST_S, since_begin_s / 4.0) if given_s is None else given_s
    return grace if has_quorum else 4.0 * grace


def those_in(state: MegabatchState) -> tuple[str, ...]:
    """Return the workers that can be merged."""
    return tuple(name for name, worker in state.members.items() if worker.is_in)


def others(state: MegabatchState, quorum: float) -> str:
    """Return what a merge waits for, ``"quorum"`` or ``"others"``; "" if it waits for nobody.

    Examples
    --------
    >>> done, busy = WorkerState(batch_size=1, rows=5), WorkerState(batch_size=1, leases=1)
    >>> state = MegabatchState(0, members={"a": done, "b": busy, "c": done, "d": done})
    >>> others(state, 0.75), others(state, 0.8)
    ('others', 'quorum')
    """
    here = present(state.members).values()
    expected = [worker for worker in here if worker.is_expected] or here
    are_in = sum(worker.is_in for worker in expected)
    if are_in == len(expected):
        return ""
    return "others" if are_in >= math.ceil(quorum * len(expected) - 1e-9) else "quorum"


def call_back(state: MegabatchState) -> tuple[MegabatchState, tuple[Rebase, ...]]:
    """Rebase the late workers that have done what they were leased."""
    members = dict(state.members)
    back = [n for n, w in members.items() if w.is_late and not (w.leases or w.is_called)]
    for name in back:
        members[name] = replace(members[name], is_called=True)
    return replace(state, members=members), tuple(Rebase(name) for name in back)


def give_up(state: MegabatchState) -> tuple[MegabatchState, tuple[GiveUp, ...]]:
    """Let others do the rows of workers that are too late, or of all where nothing else is left."""
    members, rows_left = dict(state.members), state.remaining_rows
    here = present(members).values()
    going_on = [worker for worker in here if worker.is_in or not state.is_grace_over]
    is_over = state.is_grace_over or not rows_left
    is_stuck = is_over and not any(worker.rows or worker.leases for worker in going_on)
    given_up = []
    for name, worker in members.items():
        rows = worker.rows + worker.leased_rows + worker.quota_rows
        is_out = worker.lag > 0 or (state.is_grace_over and not worker.is_in)
        if rows and (worker.age > STALENESS or (is_stuck and is_out)):
            members[name] = replace(worker.without_work(), is_given_up=True, is_expected=False)
            given_up.append(GiveUp(name))
            rows_left += rows
    return replace(state, members=members, remaining_rows=rows_left), tuple(given_up)


def wait(state: MegabatchState, quorum: float) -> tuple[MegabatchState, tuple[Wait, ...], bool]:
    """Return the state, what to wait for, and whether the merge is due.

    Workers that are in, although rows are left, are those to which no lease is worth giving.
    """
    are_in = [state.members[name] for name in those_in(state)]
    is_open = state.remaining_rows > 0 and not state.is_draining
    waits_for = others(state, quorum) if are_in else ""
    if not waits_for or quorum == 1.0:
        settled = replace(state, waits_for="", is_grace_over=False)
        return settled, (), bool(are_in) and not (waits_for or is_open)
    if waits_for != state.waits_for:
        command = Wait(has_quorum=waits_for == "others")
        return replace(state, waits_for=waits_for, is_grace_over=False), (command,), False
    is_worth = state.is_draining or any(worker.rows for worker in are_in)
    return state, (), state.is_grace_over and is_worth


def merging(state: MegabatchState) -> MegabatchState:
    """Return the state with the workers that are merged only.

    The updates of a late one count no more than the most that another made since the last merge:
    its change is that of several mega-batches.

    Examples
    --------
    >>> new = WorkerState(batch_size=1, updates=5)
    >>> late = replace(new, updates=9, age=1)
    >>> state = MegabatchState(0, merging=("a", "b"), members={"a": new, "b": late})
    >>> {name: worker.updates for name, worker in merging(state).members.items()}
    {'a': 5, 'b': 5}
    """
    members = {name: state.members[name] for name in state.merging}
    most = max((w.updates for w in members.values() if not w.age), default=0) or math.inf
    members = {n: replace(w, updates=min(w.updates, most)) for n, w in members.items()}
    return replace(state, members=members)
