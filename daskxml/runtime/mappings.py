"""The memory of a machine's other processes, kept mapped from one round to the next.

To map a model and let go of it again costs about as much as to read it once: the kernel enters
every page when it is first read, and takes it out in the end. What is kept here takes no memory as
long as its owner has it; what the owner has given up, or left behind by dying, is let go of at the
end of the next round.
"""

from __future__ import annotations

import threading

from daskxml.training.shared import SharedHandle, SharedModel


class Mappings:
    """Shared arrays by their handles; callable from any thread.

    Examples
    --------
    >>> from daskxml.training.shared import SharedModel
    >>> owner, mappings = SharedModel.create(3), Mappings()
    >>> mappings.find(owner.handle) is mappings.find(owner.handle)
    True
    >>> owner.close()
    >>> mappings.purge()
    >>> len(mappings)
    0
    """

    def __init__(self) -> None:
        self._models: dict[SharedHandle, SharedModel] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._models)

    def find(self, handle: SharedHandle) -> SharedModel:
        """Return what another process has told of, mapped now if it was not before.

        Raises
        ------
        ClusterError
            If it is gone, or cannot be reached from here.
        """
        with self._lock:
            model = self._models.get(handle)
            if model is None or not model.is_found_by(handle):
                model = self._models[handle] = SharedModel.open(handle)
            return model

    def purge(self) -> None:
        """Let go of what its owner has no longer."""
        with self._lock:
            gone = [handle for handle, it in self._models.items() if not it.is_found_by(handle)]
            for handle in gone:
                self._models.pop(handle).close()

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            for model in self._models.values():
                model.close()
            self._models.clear()
