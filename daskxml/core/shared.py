"""What is changed in the whole process for as long as anybody needs it, and then as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any


class Shared:
    """A context that several users have in common: the first enters it, and the last leaves it.

    Users may be in several threads, and end in any order.

    Parameters
    ----------
    make
        Returns the context, each time it is entered.

    Examples
    --------
    >>> from contextlib import nullcontext
    >>> with Shared(lambda: nullcontext(print("entered"))) as shared, shared:
    ...     print("in both")
    entered
    in both
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._users, self._entered = make, 0, ExitStack()
        self._turn = threading.RLock()  # a user may end while garbage is collected

    def __enter__(self) -> Shared:
        with self._turn:
            if not self._users:
                self._entered.enter_context(self._make())
            self._users += 1
        return self

    def __exit__(self, *error: object) -> None:
        with self._turn:
            self._users -= 1
            if not self._users:
                self._entered.close()
