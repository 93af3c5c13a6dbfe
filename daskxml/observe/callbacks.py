"""Callbacks of a run: errors in ``on_megabatch`` become warnings and do not end the run.

The run itself is elsewhere, in the scheduler or in the simulator, and its directory is written
first. So a failing callback loses only its own figures. Its errors are reported at once, with the
place; it is called again for the next mega-batch (a server may be back), but not after three
errors in a row, each of which may have waited long.
``KeyboardInterrupt`` is a request, not an error, and propagates, and so do exceptions that the user
names, such as `optuna.TrialPruned`.

A callback ends the run at the next merge by returning `STOP`.
"""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from daskxml.core.errors import CallbackWarning
from daskxml.observe.run_view import Event, Row
from daskxml.session.commands import STOP, Stop

OnEvent = Callable[[Event], Any]
OnMegabatch = Callable[[Row], Any]
MOST_IN_A_ROW = 3  # errors, before a callback is given up


def ignore(event: Event) -> None:
    """Ignore the event."""


def warner(publish: OnEvent) -> Callable[[str], Any]:
    """Return a function that publishes a line of text as a warning."""
    return lambda text: publish({"kind": "warning", "text": text})


def run_callbacks(
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    raises: Iterable[type[BaseException]] = (),
) -> OnEvent:
    """Return a function that passes a run's events on to its callbacks.

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
    show, on_row, raised = on_event or ignore, on_megabatch or ignore, tuple(raises)
    in_a_row = 0

    def publish(event: Event) -> Stop | None:
        nonlocal in_a_row
        answers = [show(event)]
        if event["kind"] == "megabatch" and in_a_row < MOST_IN_A_ROW:
            try:
                answers.append(on_row(copy.deepcopy(event["row"])))
                in_a_row = 0
            except raised:
                raise
            except Exception as error:
                in_a_row += 1
                then = "the run continues" if in_a_row < MOST_IN_A_ROW else "it is not called again"
                text = f"on_megabatch failed: {_described(error)}; {then}"
                show({"kind": "warning", "text": text})
                warnings.warn(text, CallbackWarning, stacklevel=2)
        return STOP if any(answer is STOP for answer in answers) else None

    return publish


def _described(error: Exception) -> str:
    """Return an error in one line, with file and line of the code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({Path(last.filename).name}:{last.lineno})"
