"""Ctrl-C during and after a block that must not be interrupted."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from daskxml.core.signals import defer_signals, shield_children


def interrupted(steps: Any) -> None:
    with defer_signals():
        os.kill(os.getpid(), signal.SIGINT)
        steps += ["on"]


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    before = signal.getsignal(signal.SIGINT)
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(steps)
    assert steps == ["on"]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_is_not_lost_where_the_block_fails() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        interrupted(None)
    assert isinstance(raised.value.__context__, TypeError)


def test_an_error_in_a_block_without_an_interrupt_is_raised() -> None:
    with pytest.raises(TypeError, match="NoneType"), defer_signals():
        raise TypeError("NoneType")


def test_other_threads_have_nothing_to_defer() -> None:
    done = []

    def block() -> None:
        with defer_signals():
            done.append(True)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert done


def test_children_ignore_ctrl_c_and_the_parent_does_not() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    with shield_children():
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.stdout == "alive\n"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
