"""The gradient of the sparse first layer, held by the features that a batch uses.

A batch comes in segments, and a step that is not linear in the gradient needs all of it. So the
entries of all segments are kept, with the deltas of their rows, and sorted by feature at the end of
the step; then the gradient of any of the features can be formed where it is needed, a few at a
time, and is never held as a whole matrix of features x units.
"""

from __future__ import annotations

from daskxml.ops import Drop, Kernels, Live, RowSums
from daskxml.types import Array, Csr


class TouchedRows:
    """Collects ``x[rows].T @ delta`` over the segments of one step.

    Parameters
    ----------
    features, units
        The shape of the layer's weights.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import KEEP_ALL, get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> touched = TouchedRows(kernels, features=9, units=1)
    >>> x = Csr(np.array([0, 2]), np.array([3, 8], np.int32), np.ones(2, np.float32), 9)
    >>> for delta in (2.0, 5.0):
    ...     touched.add(x, np.array([0]), np.full((1, 1), delta, np.float32), KEEP_ALL)
    >>> touched.group()
    >>> touched.sums().ids.tolist(), touched.whole_gradient().tolist()
    ([3, 8], [[7.0], [7.0]])
    """

    def __init__(self, kernels: Kernels, features: int, units: int) -> None:
        self._kernels, self._units = kernels, units
        self._tally = kernels.zeros(features, "int32")
        kinds = ("int32", "int32", "float32")
        self._entries = [kernels.empty(0, kind) for kind in kinds]  # columns, rows, values
        self._grouped = [kernels.empty(0, kind) for kind in ("int32", "int64", *kinds[1:])]
        self._deltas, self._whole = kernels.empty(0), kernels.empty(0)
        self._entry_count = self._row_count = 0
        self.count = 0  # features at most, once they are grouped
        self._live: Array | None = None  # where the device has their true number

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        arrays = (self._tally, self._deltas, self._whole, *self._entries, *self._grouped)
        return sum(int(array.nbytes) for array in arrays)

    def reserve(self, rows: int, nonzeros: int, whole: bool) -> None:
        """Allocate for steps of so many rows and entries; ``whole``: and `whole_gradient`."""
        self._entries = [self._grown(array, nonzeros) for array in self._entries]
        self._grouped = [self._grown(array, nonzeros + 1) for array in self._grouped]
        self._deltas = self._grown(self._deltas, rows * self._units)
        if whole:
            features = min(nonzeros, int(self._tally.shape[0]))
            self._whole = self._grown(self._whole, features * self._units)

    def add(self, x: Csr, rows: Array, delta: Array, drop: Drop) -> None:
        """Take in a segment: ``delta`` ``(count, units)`` belongs to ``x[rows]`` and is copied."""
        kernels, begin = self._kernels, self._entry_count
        room = begin + kernels.nonzeros(x, rows)
        self._entries = [self._grown(array, room) for array in self._entries]
        free = tuple(array[begin:room] for array in self._entries)
        row, floats = self._row_count, int(rows.shape[0]) * self._units
        self._entry_count += kernels.feature_entries(free, x, rows, row, drop)
        place = row * self._units
        self._deltas = self._grown(self._deltas, place + floats)
        kernels.copy(self._deltas[place : place + floats], delta.reshape(-1))
        self._row_count += int(rows.shape[0])

    def group(self) -> None:
        """Sort what has been taken in; ``count`` is then how many features are in use, at most."""
        used = self._entry_count
        self._grouped = [self._grown(array, used + 1) for array in self._grouped]
        columns, rows, values = (array[:used] for array in self._entries)
        features, starts, sorted_rows, sorted_values = self._grouped
        entries = columns, rows, values
        self.count, self._live = self._kernels.group_entries(
            features, starts, sorted_rows, sorted_values, entries, self._tally
        )

    def sums(self) -> RowSums:
        """Return the features in use, and their gradient as sums of `deltas`."""
        features, starts, rows, values = self._grouped
        ids, starts = features[: self.count], starts[: self.count + 1]
        return RowSums(ids, starts, rows, values, self._live)

    @property
    def live(self) -> Live | None:
        """Which of the features in use there are, where the host was not told."""
        return None if self._live is None else (self._live, 0)

    @property
    def deltas(self) -> Array:
        """Those of all rows, ``(rows, units)``."""
        return self._deltas[: self._row_count * self._units].reshape(-1, self._units)

    def whole_gradient(self) -> Array:
        """Form the gradient of all features in use, ``(count, units)``; valid until the next."""
        self._whole = self._grown(self._whole, self.count * self._units)
        whole, sums = self._whole[: self.count * self._units].reshape(-1, self._units), self.sums()
        operands = sums.starts, sums.rows, sums.values, self.deltas
        if self._live is not None:
            self._kernels.fill(whole, 0.0)  # also rows that are not there: norms are of all
        self._kernels.gather_rows(whole, *operands, self.live)
        return whole

    def clear(self) -> None:
        """Forget the step; the buffers stay."""
        self._entry_count = self._row_count = self.count = 0

    def _grown(self, array: Array, size: int) -> Array:
        """The array, or a longer one that begins with what it holds."""
        held = int(array.shape[0])
        if size <= held:
            return array
        longer = self._kernels.empty(max(size, held + held // 2), str(array.dtype))
        self._kernels.copy(longer[:held], array)
        return longer
