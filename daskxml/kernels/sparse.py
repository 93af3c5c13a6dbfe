"""The contract of kernels on sparse rows: the first layer, and its gradient by feature."""

from __future__ import annotations

from typing import Protocol

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.dense import KEEP_ALL, Drop

DeviceCount = tuple[Array, int]  # (1,) int32 on the device, and the number of the first row


class SparseKernels(Protocol):
    """The part of `daskxml.kernels.Kernels` on sparse rows: equal bits for any number of threads.

    ``x`` is ``(n, features)``, ``rows`` ``(count,)`` int64 are the row numbers of a batch.
    """

    def nonzeros(self, x: Csr, rows: Array) -> int:
        """Stored entries of ``rows``."""

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        """``out[i]`` (float32) = stored entries of ``rows[i]``."""

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        """``out (count, units) = x[rows] @ weight (features, units) + bias``, in place.

        On a CPU ``weight`` may be `Quantised`; then nothing is dropped.
        """

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        """``weight += factor * x[rows].T @ delta``; touches the features of ``rows`` only."""

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        """``out (count, features) = x[rows]``, in place."""

    # -- the gradient of the features in use -----------------------------------------------------

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, row_offset: int, drop: Drop
    ) -> int:
        """Write the entries of ``x[rows]`` that dropout keeps as columns, rows and values.

        Row ``rows[i]`` gets the number ``row_offset + i``; ``out`` are int32, int32, float32 and
        long enough. Returns the number of entries.
        """

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], counts: Array,
    ) -> tuple[int, Array | None]:  # fmt: skip
        """Sort entries by feature, in the order of their first use.

        ``entries`` are columns int32, rows int32, values float32, each ``(n,)``; rows ascend and
        have a feature at most once. Feature ``i`` is ``features[i]`` int32 and has ``rows`` and
        ``values`` from ``starts[i]`` to ``starts[i + 1]`` (int64, one more than features), in the
        order of the entries. ``counts`` int32, one for each column, is zero before and after.

        Returns
        -------
        int
            The number of features, or an upper bound of it.
        Array or None
            Where it is a bound: the number, ``(1,)`` int32 on the device, without synchronizing.
        """

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array,
        device_count: DeviceCount | None = None,
    ) -> None:  # fmt: skip
        """``out[i] = sum of values[e] * delta[rows[e]]``, ``e`` in ``starts[i] .. starts[i + 1]``.

        ``out`` is ``(count, units)``, ``starts`` ``(count + 1,)``; rows beyond ``device_count``
        are not written.
        """
