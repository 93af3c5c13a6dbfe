"""A copy of the shared model that a worker steps on, and whose change it adds to that model.

A large batch is worked on for long, on another device or machine, while others update the shared
model: so its worker copies the model when the batch begins and adds what it has changed in the copy
when the batch ends; it never overwrites (Ma et al., IPDPSW 2021, section VI.B).
"""

from __future__ import annotations

from daskxml.ops import Kernels
from daskxml.training.shared import LocalStore, ModelStore
from daskxml.types import Array


class DeepCopy:
    """A flat model that follows another one, batch by batch.

    With a model of this machine on a CPU, a batch costs seven passes over the model's size beside
    the step: two copies, and the change in one pass over three.

    Parameters
    ----------
    kernels
        Of the device.
    flat
        ``(size,)`` float32 on the device: the copy, which steps change in place.
    store
        The model.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> from daskxml.training.shared import SharedModel
    >>> model, flat = SharedModel.create(2), np.zeros(2, np.float32)
    >>> copy = DeepCopy(get_kernels("cpu", 1), flat, LocalStore(model))
    >>> copy.pull()
    >>> flat[0] += 1.0
    >>> model.flat[:] = 5.0  # somebody else, meanwhile
    >>> copy.push()
    >>> model.flat
    array([6., 5.], dtype=float32)
    """

    def __init__(self, kernels: Kernels, flat: Array, store: ModelStore) -> None:
        self._kernels, self._flat, self._store = kernels, flat, store
        self._before = kernels.zeros(flat.shape)

    def pull(self) -> None:
        """Copy the model as it stands: a batch begins."""
        host = self._kernels.to_host(self._flat)
        self._store.pull(host)
        if host is not self._flat:
            self._kernels.copy(self._flat, self._kernels.to_device(host))
        self._kernels.copy(self._before, self._flat)

    def push(self) -> None:
        """Add to the model what has changed in the copy since it was pulled: a batch ends."""
        before = self._before
        if isinstance(self._store, LocalStore) and self._kernels.name == "cpu":
            self._store.push_change(self._flat, before)
        else:
            self._kernels.weigh_two(before, self._flat, 1.0, before, -1.0)
            self._store.push(self._kernels.to_host(before))
