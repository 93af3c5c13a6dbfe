"""Merges by a quorum: who is waited for, and what becomes of a worker that comes late.

A worker is *in* when nothing that it was given is under way. A merge begins when no rows are left
to give out and all are in; with a quorum below 1 also without some of them: once that share of the
workers is in and a grace is over, and a multiple of the grace later without a quorum. Nobody waits
for a worker that is silent, or for one that the last merge began without until it is back. The
session measures the grace: `Wait` tells it to, and `GraceOver` is its answer
(`daskxml.session.grace`).

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


def those_in(state: MegabatchState) -> tuple[str, ...]:
    """Return the workers that can be merged."""
    return tuple(name for name, worker in state.members.items() if worker.is_in)


def others(state: MegabatchState, quorum: float) -> str:
    """Return what a merge waits for, ``"quorum"`` or ``"others"``; "" if it waits for nobody.

    Examples
    --------
    >>> from daskxml.strategies.state import WorkerState
    >>> done, busy = WorkerState(batch_size=1, rows=5), WorkerState(batch_size=1, leases=1)
    >>> members = {"a": done, "b": busy, "c": done, "d": done}
    >>> state = MegabatchState(remaining_rows=0, members=members)
    >>> others(state, 0.75), others(state, 0.8)
    ('others', 'quorum')
    """
    here = present(state.members).values()
    are_in = sum(worker.is_in for worker in here)
    if are_in == len(here):
        return ""
    return "others" if are_in >= math.ceil(quorum * len(here) - 1e-9) else "quorum"


def call_back(state: MegabatchState) -> tuple[MegabatchState, tuple[Rebase, ...]]:
    """Rebase the late workers that have done what they were leased."""
    found = state.members.items()
    back = {n: w for n, w in found if w.is_late and not (w.leases or w.is_called)}
    called = {name: replace(worker, is_called=True) for name, worker in back.items()}
    rebases = tuple(Rebase(name, keeps_change=worker.rows > 0) for name, worker in back.items())
    return replace(state, members={**state.members, **called}), rebases


def give_up(state: MegabatchState) -> tuple[MegabatchState, tuple[GiveUp, ...]]:
    """Let others do the rows of workers that are too late, or of all where nothing else is left."""
    members, rows_left = dict(state.members), state.remaining_rows
    here = present(members).values()
    is_silent = state.is_grace_over and state.waits_for == "work"
    is_stuck = is_silent or not (rows_left or any(w.rows or w.leases for w in here))
    given_up = []
    for name, worker in members.items():
        rows = worker.rows + worker.leased_rows + worker.quota_rows
        is_out = not worker.is_in if is_silent else worker.lag > 0 and worker.leases > 0
        if rows and (worker.age > STALENESS or (is_stuck and is_out)):
            members[name] = worker.given_up()
            given_up.append(GiveUp(name))
            rows_left += rows
    return replace(state, members=members, remaining_rows=rows_left), tuple(given_up)


def wait(state: MegabatchState, quorum: float) -> tuple[MegabatchState, tuple[Wait, ...], bool]:
    """Return the state, what to wait for, and whether the merge is due.

    Workers that are in, although rows are left, are those to which no lease is worth giving.
    """
    are_in = [state.members[name] for name in those_in(state)]
    waits_for = others(state, quorum) if are_in else ""
    if quorum < 1.0 and are_in and not any(worker.rows for worker in are_in):
        found = state.members.values()
        waits_for = "work" if any(w.rows or w.leased_rows or w.quota_rows for w in found) else ""
    if not waits_for or quorum == 1.0:
        is_open = state.remaining_rows > 0 and not state.is_draining
        settled = replace(state, waits_for="", is_grace_over=False)
        return settled, (), bool(are_in) and not (waits_for or is_open)
    if waits_for == state.waits_for != "work":
        return state, (), state.is_grace_over
    waiting = replace(state, waits_for=waits_for, is_grace_over=False)
    return waiting, (Wait(waits_for),), False


def merging(state: MegabatchState) -> MegabatchState:
    """Return the state with the workers that are merged only.

    The updates of a late one count no more than the most that another made since the last merge:
    its change is that of several mega-batches.

    Examples
    --------
    >>> from daskxml.strategies.state import WorkerState
    >>> new = WorkerState(batch_size=1, updates=5)
    >>> late = replace(new, updates=9, age=1)
    >>> members = {"a": new, "b": late}
    >>> state = MegabatchState(remaining_rows=0, merging=("a", "b"), members=members)
    >>> {name: worker.updates for name, worker in merging(state).members.items()}
    {'a': 5, 'b': 5}
    """
    members = {name: state.members[name] for name in state.merging}
    most = max((w.updates for w in members.values() if not w.age), default=0) or math.inf
    members = {n: replace(w, updates=min(w.updates, most)) for n, w in members.items()}
    return replace(state, members=members)
