# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The sparse first layer on a GPU: rows are read in place, entries are grouped by feature.

Rows of a batch share features. Adding their shares with atomics would round in another order each
time, so entries are grouped by feature first (integers only), and each weight has one writer, which
adds in the order of the rows: equal bits in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.cuda.dense import count_operands, rate_operands
from daskxml.kernels.cuda.device import NULL, THREADS, DeviceKernels, MakeArray, aligned, grid
from daskxml.kernels.operands import KEEP_ALL, DeviceCount, Drop

_ROW_THREADS = 128  # the size of shared memory in `sparse_forward`
_MOST_THREADS = 1024
_ONE_BLOCK = 1 << 13  # numbers that one block scans faster than three launches


@dataclass(frozen=True, slots=True)
class StagedCsr(Csr):
    """The rows of a batch, with room for more entries than it has, whose column is -1.

    ``row_numbers`` int32 has the row of each entry.
    """

    row_numbers: Array = None


class CudaSparse(DeviceKernels):
    """The part of `daskxml.kernels.Kernels` on sparse rows, for a GPU."""

    def nonzeros(self, x: Csr, rows: Array) -> int:
        """Without synchronizing where the rows were uploaded from the host."""
        starts, ids = (self.host_copy(array) for array in (x.indptr, rows))
        return int((starts[ids + 1] - starts[ids]).sum())

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        self._each("row_lengths", int(rows.shape[0]), out, x.indptr, rows)

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        units = int(weight.shape[1])
        threads = min(_ROW_THREADS, -(-units // 32) * 32)
        self._device.launch(
            "sparse_forward", (int(rows.shape[0]), -(-units // threads)), (threads,),
            out, x.indptr, x.indices, values_or_null(x), rows, weight, bias, np.int32(units),
            *_counter(x, drop),
        )  # fmt: skip

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        units, make = int(weight.shape[1]), self._device.scratch()
        if isinstance(x, StagedCsr):
            entries: tuple[Array, ...] = x.indices, x.row_numbers, x.data
        else:
            size = self.nonzeros(x, rows)
            if size == 0:
                return
            entries = tuple(make(size, kind) for kind in ("int32", "int32", "float32"))
            self._write_entries(make, entries, x, rows, 0, drop)
        counts = self._zeros_of("counts", x.columns, "int32")
        features, starts, count, sorted_rows, values = self._group(make, entries, counts)
        self._device.launch(
            "update_features", (int(entries[0].shape[0]),), (_unit_threads(units),),
            weight, features, starts, sorted_rows, values, delta, *rate_operands(factor), count,
            np.int32(units),
        )  # fmt: skip

    def stage_rows(
        self, out: StagedCsr, begins: Array, pieces: Sequence[tuple[Csr, int]], rows: int,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        """Copy the rows of a batch to where a captured step reads them; ``out.indptr`` is given.

        Parameters
        ----------
        begins
            ``(rows,)`` int64: where the entries of each row begin in its matrix.
        pieces
            A matrix for each segment of the batch, and how many rows are from it.
        """
        first, room = drop.first_row, np.int64(out.nonzeros)
        for x, count in pieces:
            self._device.launch(
                "stage_rows", (count,), (_ROW_THREADS,),
                out.indices, out.row_numbers, out.data, out.indptr, begins, x.indices,
                values_or_null(x), np.int64(rows), room,
                *_counter(x, replace(drop, first_row=first)),
            )  # fmt: skip
            first += count

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, row_offset: int, drop: Drop
    ) -> int:
        """Writes dropped entries too, with the value 0: so their number is known."""
        self._write_entries(self._device.scratch(), out, x, rows, row_offset, drop)
        return self.nonzeros(x, rows)

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        self._device.launch(
            "densify", (int(rows.shape[0]),), (_ROW_THREADS,),
            out, x.indptr, x.indices, values_or_null(x), rows,
            *_counter(x, drop),
        )  # fmt: skip

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], counts: Array,
    ) -> tuple[int, Array | None]:  # fmt: skip
        """Without synchronizing for the number of features."""
        used = int(entries[0].shape[0])
        if used == 0:
            self._device.clear(starts[:1])
            return 0, None
        count = self._zeros_of("count", 1, "int32")  # valid until the next step's
        found = self._group(self._device.scratch(), entries, counts)
        outs = features[:used], rows[:used], values[:used], count
        for out, array in zip(outs, (found[0], *found[3:], found[2]), strict=True):
            self._device.copy(out, array)
        self._device.launch("copy_starts", *grid(used + 1), starts, found[1], found[2])
        return min(used, int(counts.shape[0])), count

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array,
        device_count: DeviceCount | None = None,
    ) -> None:  # fmt: skip
        count, units = (int(size) for size in out.shape)
        self._device.launch(
            "gather_rows", (count,), (_unit_threads(units),),
            out, starts, rows, values, delta, np.int32(units), *count_operands(device_count),
        )  # fmt: skip

    def _write_entries(
        self, make: MakeArray, out: tuple[Array, ...], x: Csr, rows: Array, row_offset: int,
        drop: Drop,
    ) -> None:  # fmt: skip
        count = int(rows.shape[0])
        offsets = make(count + 1, "int32")
        self._each("row_sizes", count, offsets, x.indptr, rows)
        self._scan(make, offsets, count)
        self._device.launch(
            "write_entries", (count,), (_ROW_THREADS,),
            *out, offsets, x.indptr, x.indices, values_or_null(x), rows, np.int64(row_offset),
            *_counter(x, drop),
        )  # fmt: skip

    def _group(
        self, make: MakeArray, entries: tuple[Array, ...], counts: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Features, starts (int32), their number ``(1,)``, rows and values."""
        columns, rows, values = entries
        used = int(columns.shape[0])
        features, slots, sorted_rows = (make(used, "int32") for _ in range(3))
        zeros = make(2 * used + 1, "int32")
        self._device.clear(zeros)
        starts, taken = zeros[: used + 1], zeros[used + 1 :]
        sorted_values = make(used, "float32")
        numbers, size = self._number_features(make, features, columns, counts), np.int32(used)
        count = numbers[used:]
        launch, wide = self._device.launch, grid(used)
        launch("count_entries", *wide, starts, counts, columns, size)
        self._scan(make, starts, used)
        launch("place_entries", *wide, slots, taken, starts, counts, columns, size)
        launch("clear_counts", *wide, counts, columns, size)
        launch(
            "order_entries", (-(-used // 4),), (128,),
            sorted_rows, sorted_values, slots, starts, rows, values, count,
        )  # fmt: skip
        return features, starts, count, sorted_rows, sorted_values

    def _number_features(
        self, make: MakeArray, features: Array, columns: Array, counts: Array
    ) -> Array:
        """Number features by first use, in ``counts`` too; how many precede each entry."""
        used = int(columns.shape[0])
        numbers, size, wide = make(used + 1, "int32"), np.int32(used), grid(used)
        self._device.launch("find_first", *wide, counts, columns, size)
        self._device.launch("flag_first", *wide, numbers, counts, columns, size)
        self._scan(make, numbers, used)
        self._device.launch("number_features", *wide, features, counts, numbers, columns, size)
        return numbers

    def _scan(self, make: MakeArray, x: Array, size: int) -> None:
        """Exclusive prefix sums of ``x (size + 1,)`` int32, in place."""
        if size <= _ONE_BLOCK:
            threads = min(_MOST_THREADS, -(-max(1, size) // 32) * 32)
            self._device.launch("scan_totals", (1,), (threads,), x, np.int32(size))
            return
        chunks = -(-size // THREADS)
        totals = make(chunks + 1, "int32")
        launch = self._device.launch
        launch("scan_chunks", (chunks,), (THREADS,), x, totals, np.int64(size))
        launch("scan_totals", (1,), (THREADS,), totals, np.int32(chunks))
        launch("scan_add", *grid(size + 1), x, totals, np.int32(THREADS), np.int64(size))


def sparse_scratch_bytes(rows: int, nonzeros: int) -> int:
    """Temporary memory of `CudaSparse.sparse_update`: ten arrays of entries, and sums of chunks."""
    words = 10 * nonzeros + rows + 3 * (nonzeros // THREADS) + rows // THREADS
    return 4 * words + 20 * aligned(1)


def values_or_null(x: Csr) -> Any:
    """The values of a matrix as a kernel's operand: null where all are 1."""
    return NULL if x.data is None else x.data


def _unit_threads(units: int) -> int:
    return min(THREADS, -(-units // 32) * 32)


def _counter(x: Csr, drop: Drop) -> tuple[Any, ...]:
    """Dropout's operands, in the order in which the kernels take them."""
    return (
        np.int64(drop.first_row), np.int64(x.columns), np.uint64(drop.key), np.uint64(drop.limit),
        np.float32(drop.scale),
    )  # fmt: skip
