# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The sparse first layer on a GPU: rows are read where they lie, entries grouped by feature.

Several rows of a batch touch the same feature. Adding their shares with atomics would round in
another order each time, so entries are grouped by feature first (integers only), and each weight
has one writer, who adds in the order of the rows: the same bits in each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.ops.cuda_arena import aligned
from daskxml.ops.cuda_device import NULL, Device, Kept, MakeArray, Mirrors
from daskxml.ops.cuda_flat import THREADS, grid
from daskxml.ops.optim_protocol import Live
from daskxml.ops.protocol import KEEP_ALL, Drop
from daskxml.types import Array, Csr

_ROW_THREADS = 128  # what a block of `sparse_forward` has room for
_MOST_THREADS = 1024
_ONE_BLOCK = 1 << 13  # numbers that one block adds up before three launches would


class CudaSparse:
    """Implements the parts of :class:`daskxml.ops.Kernels` on sparse rows for a GPU."""

    _device: Device
    _mirrors: Mirrors
    _kept: Kept

    def nonzeros(self, x: Csr, rows: Array) -> int:
        """No wait for the device where it was given the rows by the host."""
        starts, chosen = (self._on_host(array) for array in (x.indptr, rows))
        return int((starts[chosen + 1] - starts[chosen]).sum())

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        count = int(rows.shape[0])
        self._device.launch("row_lengths", *grid(count), out, x.indptr, rows, np.int64(count))

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        units = int(weight.shape[1])
        threads = min(_ROW_THREADS, -(-units // 32) * 32)
        self._device.launch(
            "sparse_forward", (int(rows.shape[0]), -(-units // threads)), (threads,),
            out, x.indptr, x.indices, _values(x), rows, weight, bias, np.int32(units),
            *_counter(x, drop), np.float32(drop.scale),
        )  # fmt: skip

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        room, units, make = self.nonzeros(x, rows), int(weight.shape[1]), self._device.scratch()
        if room == 0:
            return
        entries = tuple(make(room, kind) for kind in ("int32", "int32", "float32"))
        self._write_entries(make, entries, x, rows, 0, drop)
        tally = self._kept.zeros("tally", x.columns, "int32")
        features, starts, count, sorted_rows, values = self._group(make, entries, tally)
        self._device.launch(
            "update_features", (int(entries[0].shape[0]),), (_unit_threads(units),),
            weight, features, starts, sorted_rows, values, delta, np.float32(factor),
            count, np.int32(units),
        )  # fmt: skip

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, place: int, drop: Drop
    ) -> int:
        """Entries that dropout drops are there, with the value 0: no wait for their number."""
        self._write_entries(self._device.scratch(), out, x, rows, place, drop)
        return self.nonzeros(x, rows)

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        self._device.launch(
            "densify", (int(rows.shape[0]),), (_ROW_THREADS,),
            out, x.indptr, x.indices, _values(x), rows,
            *_counter(x, drop), np.float32(drop.scale),
        )  # fmt: skip

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], tally: Array,
    ) -> tuple[int, Array | None]:  # fmt: skip
        """A feature may stand only once in a row; rows must ascend. No wait for the number."""
        used = int(entries[0].shape[0])
        if used == 0:
            self._device.clear(starts[:1])
            return 0, None
        count = self._kept.zeros("live", 1, "int32")  # until the next step's
        found = self._group(self._device.scratch(), entries, tally)
        outs = features[:used], rows[:used], values[:used], count
        for out, array in zip(outs, (found[0], *found[3:], found[2]), strict=True):
            self._device.copy(out, array)
        self._device.launch("copy_starts", *grid(used + 1), starts, found[1], found[2])
        return min(used, int(tally.shape[0])), count

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array,
        live: Live | None = None,
    ) -> None:  # fmt: skip
        count, units = (int(size) for size in out.shape)
        self._device.launch(
            "gather_rows", (count,), (_unit_threads(units),),
            out, starts, rows, values, delta, np.int32(units), *live_rows(live),
        )  # fmt: skip

    def _write_entries(
        self, make: MakeArray, out: tuple[Array, ...], x: Csr, rows: Array, place: int, drop: Drop
    ) -> None:
        count = int(rows.shape[0])
        offsets = make(count + 1, "int32")
        self._device.launch("row_sizes", *grid(count), offsets, x.indptr, rows, np.int64(count))
        self._scan(make, offsets, count)
        self._device.launch(
            "write_entries", (count,), (_ROW_THREADS,),
            *out, offsets, x.indptr, x.indices, _values(x), rows, np.int64(place),
            *_counter(x, drop), np.float32(drop.scale),
        )  # fmt: skip

    def _group(
        self, make: MakeArray, entries: tuple[Array, ...], tally: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Features, starts (int32), their number ``(1,)``, rows and values, without a wait."""
        columns, rows, values = entries
        used = int(columns.shape[0])
        features, slots, sorted_rows = (make(used, "int32") for _ in range(3))
        zeros = make(2 * used + 1, "int32")
        self._device.clear(zeros)
        starts, taken = zeros[: used + 1], zeros[used + 1 :]
        sorted_values = make(used, "float32")
        numbers, size = self._number_features(make, features, columns, tally), np.int32(used)
        count = numbers[used:]
        launch, wide = self._device.launch, grid(used)
        launch("count_entries", *wide, starts, tally, columns, size)
        self._scan(make, starts, used)
        launch("place_entries", *wide, slots, taken, starts, tally, columns, size)
        launch("clear_tally", *wide, tally, columns, size)
        launch(
            "order_entries", (-(-used // 4),), (128,),
            sorted_rows, sorted_values, slots, starts, rows, values, count,
        )  # fmt: skip
        return features, starts, count, sorted_rows, sorted_values

    def _number_features(
        self, make: MakeArray, features: Array, columns: Array, tally: Array
    ) -> Array:
        """Number features by first use, in ``tally`` too; how many stand before each entry."""
        used = int(columns.shape[0])
        numbers, size, wide = make(used + 1, "int32"), np.int32(used), grid(used)
        self._device.launch("find_first", *wide, tally, columns, size)
        self._device.launch("flag_first", *wide, numbers, tally, columns, size)
        self._scan(make, numbers, used)
        self._device.launch("number_features", *wide, features, tally, numbers, columns, size)
        return numbers

    def _scan(self, make: MakeArray, x: Array, size: int) -> None:
        """``x (size + 1,)`` int32: each becomes the sum of those before it, in place."""
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

    def _on_host(self, array: Array) -> Array:
        if not self._device.holds(array):
            return array
        mirror = self._mirrors.find(array)
        return self._device.download(array) if mirror is None else mirror


def sparse_scratch_bytes(rows: int, nonzeros: int) -> int:
    """Temporary memory of `CudaSparse.sparse_update`: ten arrays of entries, and sums of chunks."""
    words = 10 * nonzeros + rows + 3 * (nonzeros // THREADS) + rows // THREADS
    return 4 * words + 20 * aligned(1)


def live_rows(live: Live | None) -> tuple[Any, Any]:
    """Where the true number of rows is, and which of them is the first, for a kernel."""
    return (NULL, np.int32(0)) if live is None else (live[0], np.int32(live[1]))


def _values(x: Csr) -> Any:
    return NULL if x.data is None else x.data


def _unit_threads(units: int) -> int:
    return min(THREADS, -(-units // 32) * 32)


def _counter(x: Csr, drop: Drop) -> tuple[Any, ...]:
    """What the sparse kernels hash for dropout."""
    return (
        np.int64(drop.first_row), np.int64(x.columns), np.uint64(drop.key), np.uint64(drop.limit),
    )  # fmt: skip
