"""The entry point: parse the arguments, run the command, turn errors into one line and a status.

Only the chosen command's module is imported, so that ``daskxml --help`` answers at once.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daskxml._version import __version__
from daskxml.cli.arguments import build_parser
from daskxml.core.errors import CallbackWarning, ConfigError, DaskxmlError, lacks_memory, needing
from daskxml.core.text import one_line

FAILED, INTERNAL, INTERRUPTED = 2, 70, 130  # 70: EX_SOFTWARE of sysexits.h
UNREAD = 128 + signal.SIGPIPE  # as shells say it of other programs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    argv
        The arguments without the program's name; None takes the process's own.

    Returns
    -------
    0, or 2 after an error that the user can fix (one line on stderr), or 130 after Ctrl-C or
    SIGTERM, or 141 where nobody reads the output any more, or 70 after an error of daskxml itself,
    whose traceback is in a file that is named.

    Examples
    --------
    >>> main(["inspect", "/no/such/file"])
    2
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (until the end)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread():
        # `docker stop` and batch systems send it: as Ctrl-C, it ends a run at a merge.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for argument in arguments:
            # Bytes that are no UTF-8 are lone surrogates here, which Dask cannot send.
            if any("\ud800" <= character <= "\udfff" for character in argument):
                raise ConfigError(f"{argument}: not text in UTF-8, which paths and names must be")
        return _run(arguments)
    except BrokenPipeError:  # `daskxml inspect FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except KeyboardInterrupt:
        return _end(INTERRUPTED, "interrupted")
    except Exception as error:
        if "--debug" in arguments:
            raise
        if isinstance(error, DaskxmlError):
            return _end(FAILED, f"error: {error.message}")
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            # A package that was being loaded made it another error.
            return _end(INTERRUPTED, "interrupted")
        if lacks_memory(error):
            return _end(FAILED, "error: not enough memory; --debug shows where")
        if isinstance(error, OSError) and error.strerror:
            place = "" if error.filename is None else f"{one_line(str(error.filename))}: "
            return _end(FAILED, f"error: {place}{error.strerror}")
        if isinstance(error, ImportError) or "shared object" in str(error):  # llvmlite's OSError
            if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
                error = needing(f"daskxml {arguments[0]}", error)
            problem = f"{one_line(str(error))}; daskxml inspect examines the installation"
            return _end(FAILED, f"error: {problem}")
        return _end(INTERNAL, f"internal error: {_recorded(error)}")
    finally:
        if argv is None:  # the process ends: another Ctrl-C does that without a traceback
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(signal.getsignal(number)):  # else it is ignored, as in the background
                    signal.signal(number, signal.SIG_DFL)


def _run(arguments: Sequence[str]) -> int:
    options = build_parser().parse_args(arguments)
    module = importlib.import_module(f"daskxml.cli.{options.module}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CallbackWarning)  # the progress display shows them
        warnings.showwarning = _warn
        status: int = getattr(module, options.command)(options)
    sys.stdout.flush()
    return status


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"daskxml: warning: {one_line(str(message))}", file=sys.stderr)


def _end(status: int, text: str) -> int:
    """Say in one line how the command ended, and return its exit status."""
    print(f"daskxml: {text}", file=sys.stderr)
    return status


def _recorded(error: Exception) -> str:
    """Write the traceback of an error that nobody thought of to a file, and name both in a line."""
    text = "".join(traceback.format_exception(error))
    problem = one_line(f"{type(error).__name__}: {error}")
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="daskxml-", suffix=".log", delete=False, errors="backslashreplace"
        ) as file:
            file.write(f"daskxml {__version__}, Python {sys.version}\n{text}")
        where = f"its traceback is in {file.name}"
    except OSError:
        where = "--debug shows its traceback"
    return f"{problem}; {where}: please report it as an issue of daskxml"
