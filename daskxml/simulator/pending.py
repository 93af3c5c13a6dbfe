"""Changes of a shared model that wait for the end of their batch."""

from __future__ import annotations

from daskxml.training.shared import ModelStore
from daskxml.types import Array


class PendingStore:
    """A `ModelStore` whose pushes are held back until `release`.

    A batch is worked on when it begins, with the model as it is then; its change is in the model
    from the batch's end on. Pulls see what this store holds back: its worker's own changes.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.training.shared import LocalStore, SharedModel
    >>> model, copy = SharedModel.create(1), np.empty(1, np.float32)
    >>> store = PendingStore()
    >>> store.bind(LocalStore(model))
    >>> store.push(np.float32([2.0]))
    >>> store.pull(copy)
    >>> float(copy[0]), float(model.flat[0])
    (2.0, 0.0)
    >>> store.release()
    >>> float(model.flat[0])
    2.0
    """

    def __init__(self) -> None:
        self._change: Array | None = None

    def bind(self, store: ModelStore) -> None:
        """Say where changes go to in the end; to be called before the first pull."""
        self._store = store

    def pull(self, out: Array) -> None:
        """Copy the model as its worker would see it."""
        self._store.pull(out)
        if self._change is not None:
            out += self._change

    def push(self, delta: Array) -> None:
        """Hold a change back, beside what is held back already."""
        self._change = delta.copy() if self._change is None else self._change + delta

    def release(self) -> None:
        """Add to the model what is held back."""
        if self._change is not None:
            self._store.push(self._change)
        self._change = None
