"""A session that records its results and its commands."""

import copy

from daskxml.session.session import Session


class RecordingSession(Session):
    """Its trace is that of all sessions; the fixture empties it."""

    trace: list = []  # noqa: RUF012

    def start(self, devices, now_s):
        return self._record("start", (devices, now_s), super().start(devices, now_s))

    def handle(self, report, now_s):
        return self._record("handle", (report, now_s), super().handle(report, now_s))

    def tick(self, now_s):
        return self._record("tick", (now_s,), super().tick(now_s))

    def _record(self, method, arguments, commands):
        self.trace.append(copy.deepcopy((method, arguments, commands)))
        return commands


def commands_of(trace):
    """Yield every command with its time."""
    for method, arguments, commands in trace:
        yield from (
            (arguments[0] if method == "tick" else arguments[1], command) for command in commands
        )
