"""The gradient of the sparse first layer, collected until the end of a step."""

from __future__ import annotations

from daskxml.core.arrays import Array, Csr
from daskxml.kernels import Kernels
from daskxml.kernels.operands import DeviceCount, Drop, RowSums


class SparseGradient:
    """The gradient of the sparse first layer, ``x[rows].T @ delta`` summed over a step's segments.

    A step that is not linear in the gradient needs all of it. So the entries of all segments are
    collected, with the deltas of their rows, and grouped by feature at the end of the step. Then
    the gradient of any of the features can be formed where it is needed, a few at a time, and is
    never held as a whole matrix ``(features, units)``.

    Parameters
    ----------
    features, units
        The shape of the layer's weights.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.kernels.operands import KEEP_ALL
    >>> kernels = get_kernels("cpu", 1)
    >>> gradient = SparseGradient(kernels, features=9, units=1)
    >>> x = Csr(np.array([0, 2]), np.array([3, 8], np.int32), np.ones(2, np.float32), 9)
    >>> for delta in (2.0, 5.0):
    ...     gradient.add(x, np.array([0]), np.full((1, 1), delta, np.float32), KEEP_ALL)
    >>> gradient.group()
    >>> gradient.sums().ids.tolist(), gradient.materialize().tolist()
    ([3, 8], [[7.0], [7.0]])
    """

    def __init__(self, kernels: Kernels, features: int, units: int) -> None:
        self._kernels, self._units = kernels, units
        self._counts = kernels.zeros(features, "int32")
        kinds = ("int32", "int32", "float32")
        self._entries = [kernels.empty(0, kind) for kind in kinds]  # columns, rows, values
        self._grouped = [kernels.empty(0, kind) for kind in ("int32", "int64", *kinds[1:])]
        self._deltas, self._whole = kernels.empty(0), kernels.empty(0)
        self._entry_count = self._row_count = 0
        self._feature_count = 0  # after grouping; an upper bound where there is a device count
        self._device_count: DeviceCount | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        arrays = (self._counts, self._deltas, self._whole, *self._entries, *self._grouped)
        return sum(int(array.nbytes) for array in arrays)

    def reserve(self, rows: int, nonzeros: int, whole: bool) -> None:
        """Allocate for steps of so many rows and entries; ``whole``: for `materialize`, too."""
        self._entries = [self._grown(array, nonzeros) for array in self._entries]
        self._grouped = [self._grown(array, nonzeros + 1) for array in self._grouped]
        self._deltas = self._grown(self._deltas, rows * self._units)
        if whole:
            features = min(nonzeros, int(self._counts.shape[0]))
            self._whole = self._grown(self._whole, features * self._units)

    def add(self, x: Csr, rows: Array, delta: Array, drop: Drop) -> None:
        """Add a segment: ``delta`` ``(count, units)`` belongs to ``x[rows]`` and is copied."""
        kernels, begin = self._kernels, self._entry_count
        end = begin + kernels.nonzeros(x, rows)
        self._entries = [self._grown(array, end) for array in self._entries]
        free = tuple(array[begin:end] for array in self._entries)
        row, floats = self._row_count, int(rows.shape[0]) * self._units
        self._entry_count += kernels.feature_entries(free, x, rows, row, drop)
        place = row * self._units
        self._deltas = self._grown(self._deltas, place + floats)
        kernels.copy(self._deltas[place : place + floats], delta.reshape(-1))
        self._row_count += int(rows.shape[0])

    def group(self) -> None:
        """Group the collected entries by feature."""
        used = self._entry_count
        self._grouped = [self._grown(array, used + 1) for array in self._grouped]
        columns, rows, values = (array[:used] for array in self._entries)
        features, starts, sorted_rows, sorted_values = self._grouped
        entries = columns, rows, values
        self._feature_count, count = self._kernels.group_entries(
            features, starts, sorted_rows, sorted_values, entries, self._counts
        )
        self._device_count = None if count is None else (count, 0)

    def sums(self) -> RowSums:
        """Return the features in use and their gradient, as sums of rows of `deltas`."""
        features, starts, rows, values = self._grouped
        ids, starts = features[: self._feature_count], starts[: self._feature_count + 1]
        return RowSums(ids, starts, rows, values, self._device_count)

    @property
    def deltas(self) -> Array:
        """The deltas of all rows, ``(rows, units)``."""
        return self._deltas[: self._row_count * self._units].reshape(-1, self._units)

    def materialize(self) -> Array:
        """Form the gradient of all features in use, ``(count, units)``, in a reused buffer."""
        floats, sums = self._feature_count * self._units, self.sums()
        self._whole = self._grown(self._whole, floats)
        whole = self._whole[:floats].reshape(-1, self._units)
        if sums.device_count is not None:
            self._kernels.fill(whole, 0.0)  # rows beyond the count too: norms are of all
        self._kernels.gather_rows(
            whole, sums.starts, sums.rows, sums.values, self.deltas, sums.device_count
        )
        return whole

    def clear(self) -> None:
        """Remove all segments; the buffers stay allocated."""
        self._entry_count = self._row_count = self._feature_count = 0

    def _grown(self, array: Array, size: int) -> Array:
        """The array, or a longer copy of it."""
        length = int(array.shape[0])
        if size <= length:
            return array
        longer = self._kernels.empty(max(size, length + length // 2), str(array.dtype))
        self._kernels.copy(longer[:length], array)
        return longer
