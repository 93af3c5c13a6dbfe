"""Callbacks of a run: errors in ``on_megabatch`` become warnings and do not end the run.

The run itself is elsewhere, in the scheduler or in the simulator, and its directory is written
first. So a failing callback loses only its own figures. Its first error is reported at once, with
the place; it is called again for the next mega-batch (a server may be back), but not after three
errors in a row, each of which may have waited long. At the end the errors are counted.
``KeyboardInterrupt`` is a request, not an error, and propagates, and so do exceptions that the user
names, such as `optuna.TrialPruned`.

A callback ends the run at the next merge by returning `STOP`.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from daskxml.core.errors import CallbackWarning
from daskxml.observe.run_view import Event, Row
from daskxml.session.commands import STOP, Stop

OnEvent = Callable[[Event], Any]
OnMegabatch = Callable[[Row], Any]
Errors = tuple[type[BaseException], ...]
MOST_IN_A_ROW = 3  # errors, before a callback is given up


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _place(error: Exception) -> str:
    """Return file and line of the code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


class _Callbacks:
    """Both callbacks of a run, called with its events."""

    def __init__(self, on_event: OnEvent, on_megabatch: OnMegabatch, raised: Errors) -> None:
        self._on_event, self._on_megabatch, self._raised = on_event, on_megabatch, raised
        self._calls = self._failures = self._in_a_row = 0

    def __call__(self, event: Event) -> Stop | None:
        """Pass an event on; return `STOP` if a callback asks for the end of the run."""
        answers = [self._on_event(event)]
        if event["kind"] == "megabatch" and self._in_a_row < MOST_IN_A_ROW:
            answers.append(self._call(copy.deepcopy(event["row"])))
        return STOP if any(answer is STOP for answer in answers) else None

    def _call(self, row: Row) -> Any:
        self._calls += 1
        try:
            answer = self._on_megabatch(row)
        except self._raised:
            raise
        except Exception as error:
            self._failures += 1
            self._in_a_row += 1
            if self._failures == 1:
                where = f"{_one_line(error)} ({_place(error)})"
                self._warn(f"on_megabatch failed: {where}; the run continues")
            elif self._in_a_row == MOST_IN_A_ROW:
                self._warn(f"on_megabatch failed {MOST_IN_A_ROW} times in a row: not called again")
            return None
        self._in_a_row = 0
        return answer

    def _warn(self, text: str) -> None:
        self._on_event({"kind": "warning", "text": text})
        warnings.warn(text, CallbackWarning, stacklevel=2)

    def close(self) -> None:
        """Count the errors, if there was more than the one that was reported."""
        if self._failures > 1:
            self._warn(f"on_megabatch failed {self._failures} times in {self._calls} calls")


@contextlib.contextmanager
def run_callbacks(
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    raises: Iterable[type[BaseException]] = (),
) -> Iterator[OnEvent]:
    """Yield a function that passes a run's events on to its callbacks.

    Parameters
    ----------
    on_event
        Called with every event (see `daskxml.observe.run_view`), and the warnings of the other. An
        error in it ends the run and is raised.
    on_megabatch
        Called with a copy of each row of the history as soon as it exists. An error in it is a
        `CallbackWarning`, and the run continues; after three in a row it is not called again. If it
        returns `STOP`, and so with ``on_event``, the run ends at the next merge. Where a run goes
        back to a checkpoint, rows with the same numbers follow once more.
    raises
        Exceptions in ``on_megabatch`` that end the run and are raised.
    """
    callbacks = _Callbacks(on_event or ignore, on_megabatch or ignore, tuple(raises))
    try:
        yield callbacks
    finally:
        callbacks.close()


def ignore(event: Event) -> None:
    """Ignore the event."""
