"""Runs on a virtual clock that a random script disturbs: losses, arrivals, requests, restarts."""

import json

import pytest
from hypothesis import strategies as st

from daskxml.session.commands import StopRequest

CHOICES = st.lists(st.integers(0, 5), min_size=1, max_size=40)  # which task of several ends first
MOST_TURNS = 5000


def scripts(*actions):
    """So many steps, then one of these actions or none, with a number; again and again."""
    action = st.sampled_from([*actions, "none"])
    return st.lists(st.tuples(st.integers(0, 9), action, st.integers(0, 9)), max_size=14)


def may_join(backend):
    """Whether a worker may join, where no merge is under way."""
    return backend.session.stage in ("train", "evaluate", "checkpoint")


def run_script(backend, script, choices, renew=None, may_join=may_join, join=None):
    """Run to the end; return the last executor, whose account of the rows has been checked.

    ``renew(stored, name)`` makes another executor after all workers were lost, with one new worker;
    without it the run is over then. ``join(play, name, number)`` lets a worker join.
    """
    before, turn, pending = 0, 0, list(script)
    while not backend.ended or (backend.ended == "restart" and renew):
        if backend.ended:
            backend.check_history(before)
            saved = backend.stored
            before = len(saved[-1]["history"]) if saved else 0
            backend = renew(saved[-1] if saved else None, f"r{turn}")
            backend.stored = saved
        steps, action, number = pending.pop(0) if pending else (1, "none", 0)
        for _ in range(steps):
            if not backend.ended:
                turn += 1
                backend.advance(choices[turn % len(choices)])
        if not backend.ended and (action != "join" or may_join(backend)):
            _apply(backend, action, number, f"j{turn}-{len(backend.log)}", join)
        assert turn < MOST_TURNS, "the run does not end"
    backend.check_history(before)
    for row in backend.session.history:
        assert sum(w["weight"] for w in row["workers"].values()) == pytest.approx(1.0)
    if backend.ended != "restart":
        json.dumps(backend.session.plain())
    return backend


def _apply(backend, action, number, newcomer, join):
    there = sorted(backend.workers)
    if action == "lose":
        backend.lose(there[number % len(there)])
    elif action == "join" and join:
        join(backend, newcomer, number)
    elif action == "join":
        backend.join(newcomer, 1.0 + 20.0 * number)
    elif action == "stop" and number < 3:
        backend.handle(StopRequest("asked"))
