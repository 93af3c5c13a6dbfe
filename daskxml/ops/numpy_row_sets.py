# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels of sets on a CPU: Numba loops over rows, shared among threads where that pays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskxml.ops import numba_row_sets
from daskxml.ops.lanes import Lanes
from daskxml.ops.row_sets_protocol import Lookup, RowSets
from daskxml.types import Array, Csr

_PAIR_GRAIN = 1 << 13  # labels chosen, a tenth of a millisecond: less wakes no other thread
_FLOAT_GRAIN = 1 << 19  # floats multiplied in as long


class NumpyRowSets:
    """Implements :class:`daskxml.ops.row_sets_protocol.RowSetKernels` for host memory."""

    _lanes: Lanes

    def size_sets(self, starts: Array, y: Csr, rows: Array, active: int) -> None:
        numba_row_sets.size_sets(starts, y.indptr, rows, active)

    def choose_sets(
        self, sets: RowSets, y: Csr, rows: Array, first_row: int, found: Lookup, random: float,
        key: int, marks: Array,
    ) -> None:  # fmt: skip
        operands = (sets.starts, sets.ids, sets.rows, sets.own, sets.certain, y.indptr, y.indices,
                    rows, first_row, found.keys, found.starts, found.members, float(random),
                    np.uint64(key))  # fmt: skip
        self._lanes.run(
            rows.shape[0], _rows_worth(sets, _PAIR_GRAIN),
            lambda lane, *span: numba_row_sets.choose_sets(*operands, marks[lane], *span),
        )  # fmt: skip

    def softmax_sets(
        self, slopes: Array, gradient: Array, loss: Array, sets: RowSets, hidden: Array,
        weight: Array, bias: Array, weighted: bool,
    ) -> None:  # fmt: skip
        operands = (slopes, gradient, loss, sets.starts, sets.ids, sets.own, sets.certain, hidden,
                    weight, bias, weighted)  # fmt: skip
        self._each_row(sets, hidden, lambda *span: numba_row_sets.softmax_sets(*operands, *span))

    def sigmoid_sets(
        self, slopes: Array, gradient: Array, loss: Array, sets: RowSets, hidden: Array,
        weight: Array, bias: Array, weighted: bool,
    ) -> None:  # fmt: skip
        operands = (slopes, gradient, loss, sets.starts, sets.ids, sets.own, sets.certain, hidden,
                    weight, bias, weighted)  # fmt: skip
        self._each_row(sets, hidden, lambda *span: numba_row_sets.sigmoid_sets(*operands, *span))

    def _each_row(self, sets: RowSets, hidden: Array, work: Callable[[int, int], object]) -> None:
        rows, units = hidden.shape
        grain = _rows_worth(sets, _FLOAT_GRAIN // max(1, units))
        self._lanes.run(rows, grain, lambda _, start, stop: work(start, stop))


def _rows_worth(sets: RowSets, pairs: int) -> int:
    """How many rows have so many labels."""
    return max(1, pairs * sets.own.shape[0] // max(1, sets.ids.shape[0]))
