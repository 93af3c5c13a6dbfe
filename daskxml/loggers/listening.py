"""Callbacks and loggers beside a run: what goes wrong in them is a warning and no end of the run.

The run itself is elsewhere, in the scheduler or in the simulator, and its directory is written
first. So a callback can lose its own figures only. Its first error is told at once, with the
place; it is called again for the next mega-batch (a server may be back), but not after three errors
in a row, each of which may have waited long; a logger is asked to end in any case. At the end the
errors are counted. ``KeyboardInterrupt`` is no error but a wish: it goes through.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig
from daskxml.errors import CallbackWarning, ConfigError, DaskxmlError
from daskxml.loggers.choosing import make_logger
from daskxml.loggers.protocol import Logger, RunFacts
from daskxml.training.run_dir import RunDir

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]
MOST_IN_A_ROW = 3  # errors, before a callback is given up
OnMegabatch = Callable[[Mapping[str, Any]], None]


class Guarded:
    """A callback whose errors are warnings.

    Parameters
    ----------
    name
        What the warnings call it.
    warn
        Takes a warning's text.
    """

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        self.name, self._warn = name, warn
        self.calls = self.failures = self.in_a_row = 0

    @property
    def is_given_up(self) -> bool:
        """Whether it has failed too often in a row to be called again."""
        return self.in_a_row >= MOST_IN_A_ROW

    def call(self, callback: Callable[..., None], *args: Any, is_last: bool = False) -> None:
        """Call it, unless it is given up and this is not its last call; tell the first error."""
        if self.is_given_up and not is_last:
            return
        self.calls += 1
        try:
            callback(*args)
        except Exception as error:
            self.failures += 1
            self.in_a_row += 1
            self._tell(error)
        else:
            self.in_a_row = 0

    def _tell(self, error: Exception) -> None:
        if self.failures == 1:
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            self._warn(f"{self.name} failed: {problem} ({_place(error)}); the run goes on")
        elif self.in_a_row == MOST_IN_A_ROW:
            self._warn(f"{self.name} failed {MOST_IN_A_ROW} times in a row: not called again")

    def close(self) -> None:
        """Tell how many errors there were, if more than the one that was told."""
        if self.failures > 1:
            self._warn(f"{self.name} failed {self.failures} times in {self.calls} calls")


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


@contextlib.contextmanager
def listening(
    config: RunConfig,
    place: RunDir,
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    loggers: Iterable[str | Logger] = (),
    title: str = "",
) -> Iterator[OnEvent]:
    """Give a listener to a run's events that tells them to all who want to hear.

    Parameters
    ----------
    config
        The resolved run.
    place
        Its directory, open.
    on_event
        Called with every event (see `daskxml.runtime.journal`), and the warnings of the others.
        An error in it ends the run and is the caller's.
    on_megabatch
        Called with a copy of each row of the history, as soon as it is there. An error in it is a
        `CallbackWarning`, and the run goes on; after three in a row it is not called again.
    loggers
        ``"tensorboard:DIR"``, ``"mlflow:URI"``, ``"wandb:PROJECT"``, or `Logger` objects; their
        errors are warnings too, once the run has begun.
    title
        What loggers call it; "" takes the last part of its directory, or the name in its run file.

    Raises
    ------
    ConfigError
        If a logger cannot begin.
    """
    tell = on_event or ignore

    def warn(text: str) -> None:
        tell({"kind": "warning", "text": text})
        warnings.warn(text, CallbackWarning, stacklevel=2)

    named = [(_name(given), make_logger(given) if isinstance(given, str) else given)
             for given in loggers]  # fmt: skip
    audience = _Audience(tell, on_megabatch, warn)
    try:
        audience.begin(named, _facts(config, place, title) if named else None)
        yield audience
    except BaseException as error:
        audience.end("interrupt" if isinstance(error, KeyboardInterrupt) else "error")
        raise
    audience.end(audience.reason)


def ignore(event: Event) -> None:
    """Hear of an event, and do nothing."""


def _name(given: str | Logger) -> str:
    return f"--log {given.partition(':')[0]}" if isinstance(given, str) else type(given).__name__


def _facts(config: RunConfig, place: RunDir, title: str) -> RunFacts:
    folder = place.path.name if place.path is not None else ""
    called = title or folder or config.run.name or config.strategy_name
    return RunFacts(title=called, config=config, out=place.path, history=place.history())


class _Audience:
    """Everybody who hears of a run."""

    def __init__(
        self, tell: OnEvent, on_megabatch: OnMegabatch | None, warn: Callable[[str], None]
    ) -> None:
        self._tell, self._on_megabatch, self._warn = tell, on_megabatch, warn
        self._guard = Guarded("on_megabatch", warn)
        self._loggers: list[tuple[Logger, Guarded]] = []
        self.reason = "error"  # until it has ended otherwise

    def begin(self, named: Iterable[tuple[str, Logger]], facts: RunFacts | None) -> None:
        for name, logger in named:
            assert facts is not None
            try:
                logger.begin(facts)
            except DaskxmlError:
                raise
            except Exception as error:
                problem = " ".join(f"{type(error).__name__}: {error}".split())
                raise ConfigError(f"{name}: cannot begin ({problem})") from error
            self._loggers.append((logger, Guarded(name, self._warn)))

    def __call__(self, event: Event) -> None:
        self._tell(event)
        if event["kind"] == "megabatch":
            if self._on_megabatch is not None:
                self._guard.call(self._on_megabatch, copy.deepcopy(event["row"]))
            for logger, guard in self._loggers:
                guard.call(logger.log, copy.deepcopy(event["row"]))
        elif event["kind"] == "rewound":
            for logger, guard in self._loggers:
                guard.call(logger.rewind, event["megabatch"])
        elif event["kind"] == "ended":
            self.reason = event["reason"]

    def end(self, reason: str) -> None:
        for logger, guard in self._loggers:
            guard.call(logger.end, reason, is_last=True)
        for guard in (self._guard, *(guard for _, guard in self._loggers)):
            guard.close()
