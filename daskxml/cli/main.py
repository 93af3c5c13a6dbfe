"""The entry point: parse the arguments, run the command, turn errors into one line and a status.

Only the chosen command's module is imported, so that ``daskxml --help`` answers at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence

from daskxml.cli.arguments import build_parser
from daskxml.core.errors import CallbackWarning, DaskxmlError

FAILED, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    argv
        The arguments without the program's name; None takes the process's own.

    Returns
    -------
    0, or 2 after an error that the user can fix (one line on stderr), or 130 after Ctrl-C or
    SIGTERM.

    Examples
    --------
    >>> main(["generate", "/tmp", "--rows", "none"])
    2
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _interrupt_on(signal.SIGTERM)
    try:
        return _run(arguments)
    except DaskxmlError as error:
        if "--debug" in arguments:
            raise
        return _fail(error.message)
    except BrokenPipeError:  # `daskxml inspect FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if "--debug" in arguments or error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        print("daskxml: interrupted", file=sys.stderr)
        return INTERRUPTED


def _interrupt_on(signal_number: int) -> None:
    """Handle the signal of `docker stop` and batch systems as Ctrl-C: a run ends at a merge."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal_number, signal.default_int_handler)


def _run(arguments: Sequence[str]) -> int:
    options = build_parser().parse_args(arguments)
    module = importlib.import_module(f"daskxml.cli.{options.module}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CallbackWarning)  # the progress display shows them
        status: int = getattr(module, options.command)(options)
    sys.stdout.flush()
    return status


def _fail(message: str) -> int:
    print(f"daskxml: error: {message}", file=sys.stderr)
    return FAILED
