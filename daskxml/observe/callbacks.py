"""Callbacks and loggers of a run: their errors become warnings and do not end the run.

The run itself is elsewhere, in the scheduler or in the simulator, and its directory is written
first. So a failing callback loses only its own figures. Its first error is reported at once, with
the place; it is called again for the next mega-batch (a server may be back), but not after three
errors in a row, each of which may have waited long; a logger's ``end`` is called in any case. At
the end the errors are counted. ``KeyboardInterrupt`` is a request, not an error, and propagates,
and so do exceptions that the user names, such as `optuna.TrialPruned`.

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

from daskxml.config import RunConfig
from daskxml.core.errors import CallbackWarning, ConfigError, DaskxmlError
from daskxml.observe.loggers import Logger, RunFacts, make_logger
from daskxml.observe.run_view import Event, Row
from daskxml.records.run_dir import RunDir
from daskxml.session.commands import STOP, Stop

OnEvent = Callable[[Event], Any]
OnMegabatch = Callable[[Row], Any]
Errors = tuple[type[BaseException], ...]
MOST_IN_A_ROW = 3  # errors, before a callback is given up


class _Guard:
    """Calls one callback; its errors become warnings, passed to ``warn`` under its name.

    Errors that are to be raised pass through.
    """

    def __init__(self, name: str, warn: Callable[[str], None], raised: Errors = ()) -> None:
        self.name, self._warn, self._raised = name, warn, raised
        self.calls = self.failures = self.in_a_row = 0

    def call(self, callback: Callable[..., Any], *args: Any, is_last: bool = False) -> Any:
        """Call it, unless it is given up and this is not its last call; return its answer."""
        if self.in_a_row >= MOST_IN_A_ROW and not is_last:
            return None
        self.calls += 1
        answer = None
        try:
            answer = callback(*args)
        except self._raised:
            raise
        except Exception as error:
            self.failures += 1
            self.in_a_row += 1
            if self.failures == 1:
                self._warn(f"{self.name} failed: {_one_line(error)} ({_place(error)}); "
                           "the run continues")  # fmt: skip
            elif self.in_a_row == MOST_IN_A_ROW:
                self._warn(f"{self.name} failed {MOST_IN_A_ROW} times in a row: not called again")
        else:
            self.in_a_row = 0
        return answer

    def close(self) -> None:
        """Report the number of errors, if there were more than the first."""
        if self.failures > 1:
            self._warn(f"{self.name} failed {self.failures} times in {self.calls} calls")


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _place(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


class _Callbacks:
    """Passes a run's events on to ``on_event``, ``on_megabatch`` and loggers."""

    def __init__(self, on_event: OnEvent, on_megabatch: OnMegabatch | None, raised: Errors) -> None:
        self._on_event, self._on_megabatch = on_event, on_megabatch
        self._guard = _Guard("on_megabatch", self._warn, raised)
        self._loggers: list[tuple[Logger, _Guard]] = []
        self.reason = "error"  # unless an ``ended`` event comes

    def _warn(self, text: str) -> None:
        self._on_event({"kind": "warning", "text": text})
        warnings.warn(text, CallbackWarning, stacklevel=2)

    def begin(self, name: str, logger: Logger, facts: RunFacts) -> None:
        try:
            logger.begin(facts)
        except DaskxmlError:
            raise
        except Exception as error:
            raise ConfigError(f"{name}: cannot begin ({_one_line(error)})") from error
        self._loggers.append((logger, _Guard(name, self._warn)))

    def __call__(self, event: Event) -> Stop | None:
        """Pass an event on; return `STOP` if a callback does."""
        answers = [self._on_event(event)]
        if event["kind"] == "megabatch":
            if self._on_megabatch is not None:
                answers.append(self._guard.call(self._on_megabatch, copy.deepcopy(event["row"])))
            for logger, guard in self._loggers:
                guard.call(logger.log, copy.deepcopy(event["row"]))
        elif event["kind"] == "rewound":
            for logger, guard in self._loggers:
                guard.call(logger.rewind, event["megabatch"])
        elif event["kind"] == "ended":
            self.reason = event["reason"]
        return STOP if any(answer is STOP for answer in answers) else None

    def end(self, reason: str) -> None:
        for logger, guard in self._loggers:
            guard.call(logger.end, reason, is_last=True)
        for guard in (self._guard, *(guard for _, guard in self._loggers)):
            guard.close()


@contextlib.contextmanager
def run_callbacks(
    config: RunConfig,
    run_dir: RunDir,
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    loggers: Iterable[str | Logger] = (),
    title: str = "",
    raises: Iterable[type[BaseException]] = (),
) -> Iterator[OnEvent]:
    """Yield a function that passes a run's events on to all its callbacks.

    Parameters
    ----------
    config
        The resolved run.
    run_dir
        Its directory, open.
    on_event
        Called with every event (see `daskxml.observe.run_view`), and the warnings of the others.
        An error in it ends the run and is raised.
    on_megabatch
        Called with a copy of each row of the history as soon as it exists. An error in it is a
        `CallbackWarning`, and the run continues; after three in a row it is not called again. If it
        returns `STOP`, and so with ``on_event``, the run ends at the next merge.
    loggers
        ``"tensorboard:DIR"``, ``"mlflow:URI"``, ``"wandb:PROJECT"``, or `Logger` objects; their
        errors are warnings too, once the run has begun.
    title
        What loggers call it; "" takes the last part of its directory, or the name in its run file.
    raises
        Exceptions in ``on_megabatch`` that end the run and are raised.

    Raises
    ------
    ConfigError
        If a logger cannot begin.
    """
    named = [(_name(given), make_logger(given) if isinstance(given, str) else given)
             for given in loggers]  # fmt: skip
    callbacks = _Callbacks(on_event or ignore, on_megabatch, tuple(raises))
    try:
        if named:
            facts = _facts(config, run_dir, title)
            for name, logger in named:
                callbacks.begin(name, logger, facts)
        yield callbacks
    except BaseException as error:
        callbacks.end("interrupt" if isinstance(error, KeyboardInterrupt) else "error")
        raise
    callbacks.end(callbacks.reason)


def ignore(event: Event) -> None:
    """Ignore the event."""


def _name(given: str | Logger) -> str:
    return f"--log {given.partition(':')[0]}" if isinstance(given, str) else type(given).__name__


def _facts(config: RunConfig, run_dir: RunDir, title: str) -> RunFacts:
    folder = run_dir.path.name if run_dir.path is not None else ""
    title = title or folder or config.run.name or config.algorithm
    return RunFacts(title=title, config=config, out=run_dir.path, history=run_dir.history())
