"""Runs on a virtual clock that a random script disturbs: losses, arrivals, requests, restarts."""

import json

import pytest
from hypothesis import strategies as st

from daskxml.training.orders import Awaited, StopRequest

CHOICES = st.lists(st.integers(0, 5), min_size=1, max_size=40)  # which task of several ends first
MOST_TURNS = 5000


def scripts(*actions):
    """So many steps, then one of these actions or none, with a number; again and again."""
    action = st.sampled_from([*actions, "none"])
    return st.lists(st.tuples(st.integers(0, 9), action, st.integers(0, 9)), max_size=14)


def may_join(play):
    """Whether a worker may come, where no merge travels."""
    return play.session.stage in ("train", "evaluate", "checkpoint")


def play_script(play, script, choices, renew=None, may_join=may_join, join=None):
    """Play to the end of the run; returns the last executor, whose books have been checked.

    ``renew(stored, name)`` makes another executor where everybody was lost, with one new worker;
    without it the run is over then. ``join(play, name, number)`` lets somebody come.
    """
    before, turn, pending = 0, 0, list(script)
    while not play.ended or (play.ended == "restart" and renew):
        if play.ended:
            play.check_history(before)
            saved = play.stored
            before = len(saved[-1]["history"]) if saved else 0
            play = renew(saved[-1] if saved else None, f"r{turn}")
            play.stored = saved
        steps, action, number = pending.pop(0) if pending else (1, "none", 0)
        for _ in range(steps):
            if not play.ended:
                turn += 1
                play.advance(choices[turn % len(choices)])
        if not play.ended and (action != "join" or may_join(play)):
            _act(play, action, number, f"j{turn}-{len(play.log)}", join)
        assert turn < MOST_TURNS, "the run does not end"
    play.check_history(before)
    for row in play.session.history:
        assert sum(w["weight"] for w in row["workers"].values()) == pytest.approx(1.0)
    if play.ended != "restart":
        json.dumps(play.session.plain())
    return play


def _act(play, action, number, newcomer, join):
    there = sorted(play.workers)
    if action == "lose":
        play.lose(there[number % len(there)])
    elif action == "join" and join:
        join(play, newcomer, number)
    elif action == "join":
        play.join(newcomer, 1.0 + 20.0 * number)
    elif action == "await":
        play.tell(Awaited())
    elif action == "stop" and number < 3:
        play.tell(StopRequest("asked"))
