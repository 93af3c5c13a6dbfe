"""A session that writes down what it hears and what it says."""

from __future__ import annotations

import copy

from daskxml.training.session import Session


class RecordingSession(Session):
    """Its trace is that of all sessions; the fixture empties it."""

    trace: list = []  # noqa: RUF012

    def start(self, workers, now_s, devices=None):
        heard = (tuple(workers), now_s, devices)
        return self._record("start", heard, super().start(workers, now_s, devices))

    def handle(self, report, now_s):
        return self._record("handle", (report, now_s), super().handle(report, now_s))

    def tick(self, now_s):
        return self._record("tick", (now_s,), super().tick(now_s))

    def _record(self, method, heard, said):
        self.trace.append(copy.deepcopy((method, heard, said)))
        return said


def orders_of(trace):
    """Yield every order with the time when it was given."""
    for method, heard, said in trace:
        yield from ((heard[0] if method == "tick" else heard[1], order) for order in said)
