# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The sparse first layer on a GPU: rows are read where they lie, entries grouped by feature.

Several rows of a batch touch the same feature. Adding their shares with atomics would round in
another order each time, so entries are grouped by feature first (integers only), and each weight
has one writer, who adds in the order of the rows: the same bits in each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.ops.cuda_device import NULL, Device, Kept, Mirrors
from daskxml.ops.cuda_flat import THREADS, grid
from daskxml.ops.protocol import KEEP_ALL, Drop
from daskxml.types import Array, Csr

_ROW_THREADS = 128  # what a block of `sparse_forward` has room for


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
        room, units = self.nonzeros(x, rows), int(weight.shape[1])
        if room == 0:
            return
        entries = tuple(self._device.empty(room, kind) for kind in ("int32", "int32", "float32"))
        kept = self._write_entries(entries, x, rows, 0, drop)
        if drop.limit > 0:
            entries = tuple(array[: self._value_of(kept)] for array in entries)
        tally = self._kept.zeros("tally", x.columns, "int32")
        features, starts, count, sorted_rows, values = self._group(entries, tally)
        self._device.launch(
            "update_features", (int(entries[0].shape[0]),), (_unit_threads(units),),
            weight, features, starts, sorted_rows, values, delta, np.float32(factor),
            count, np.int32(units),
        )  # fmt: skip

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, place: int, drop: Drop
    ) -> int:
        kept = self._write_entries(out, x, rows, place, drop)
        return self.nonzeros(x, rows) if drop.limit == 0 else self._value_of(kept)

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        self._device.launch(
            "densify", (int(rows.shape[0]),), (_ROW_THREADS,),
            out, x.indptr, x.indices, _values(x), rows,
            *_counter(x, drop), np.float32(drop.scale),
        )  # fmt: skip

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], tally: Array,
    ) -> int:  # fmt: skip
        """A feature may stand only once in a row; rows must ascend."""
        used = int(entries[0].shape[0])
        if used == 0:
            self._device.fill(starts[:1], 0)
            return 0
        found = self._group(entries, tally)
        for out, array in zip((features, rows, values), (found[0], *found[3:]), strict=True):
            self._device.copy(out[:used], array)
        self._device.launch("copy_starts", *grid(used + 1), starts, found[1], found[2])
        return self._value_of(found[2])

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array
    ) -> None:
        count, units = (int(size) for size in out.shape)
        self._device.launch(
            "gather_rows", (count,), (_unit_threads(units),),
            out, starts, rows, values, delta, np.int32(units),
        )  # fmt: skip

    def _write_entries(
        self, out: tuple[Array, ...], x: Csr, rows: Array, place: int, drop: Drop
    ) -> Array:
        """Write the entries that dropout keeps; how many they are, ``(1,)`` on the device."""
        count = int(rows.shape[0])
        offsets = self._device.empty(count + 1, "int32")
        if drop.limit == 0:
            operands = offsets, x.indptr, rows, np.int64(count)
            self._device.launch("row_sizes", *grid(count), *operands)
        else:
            self._device.launch(
                "count_kept", (count,), (_ROW_THREADS,),
                offsets, x.indptr, x.indices, rows, *_counter(x, drop),
            )  # fmt: skip
        self._scan(offsets, count)
        self._device.launch(
            "write_kept", (count,), (_ROW_THREADS,),
            *out, offsets, x.indptr, x.indices, _values(x), rows, np.int64(place),
            *_counter(x, drop), np.float32(drop.scale),
        )  # fmt: skip
        return offsets[count:]

    def _group(
        self, entries: tuple[Array, ...], tally: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Features, starts (int32), their number ``(1,)``, rows and values, without a wait."""
        columns, rows, values = entries
        used, make = int(columns.shape[0]), self._device.empty
        features, slots, sorted_rows = (make(used, "int32") for _ in range(3))
        starts, taken = self._zeros(used + 1), self._zeros(used)
        sorted_values = make(used, "float32")
        numbers, size = self._number_features(features, columns, tally), np.int32(used)
        count = numbers[used:]
        launch, wide = self._device.launch, grid(used)
        launch("count_entries", *wide, starts, tally, columns, size)
        self._scan(starts, used)
        launch("place_entries", *wide, slots, taken, starts, tally, columns, size)
        launch("clear_tally", *wide, tally, columns, size)
        launch(
            "order_entries", (-(-used // 4),), (128,),
            sorted_rows, sorted_values, slots, starts, rows, values, count,
        )  # fmt: skip
        return features, starts, count, sorted_rows, sorted_values

    def _number_features(self, features: Array, columns: Array, tally: Array) -> Array:
        """Number features by first use, in ``tally`` too; how many stand before each entry."""
        used = int(columns.shape[0])
        numbers, size, wide = self._device.empty(used + 1, "int32"), np.int32(used), grid(used)
        self._device.launch("find_first", *wide, tally, columns, size)
        self._device.launch("flag_first", *wide, numbers, tally, columns, size)
        self._scan(numbers, used)
        self._device.launch("number_features", *wide, features, tally, numbers, columns, size)
        return numbers

    def _scan(self, x: Array, size: int) -> None:
        """``x (size + 1,)`` int32: each becomes the sum of those before it, in place."""
        chunks = -(-size // THREADS)
        totals = self._device.empty(chunks + 1, "int32")
        launch = self._device.launch
        launch("scan_chunks", (chunks,), (THREADS,), x, totals, np.int64(size))
        launch("scan_totals", (1,), (THREADS,), totals, np.int32(chunks))
        launch("scan_add", *grid(size + 1), x, totals, np.int32(THREADS), np.int64(size))

    def _zeros(self, size: int) -> Array:
        out = self._device.empty(size, "int32")
        self._device.fill(out, 0)
        return out

    def _value_of(self, count: Array) -> int:
        return int(self._device.download(count)[0])

    def _on_host(self, array: Array) -> Array:
        mirror = self._mirrors.find(array)
        return self._device.download(array) if mirror is None else mirror


def _values(x: Csr) -> Any:
    return NULL if x.data is None else x.data


def _unit_threads(units: int) -> int:
    return min(THREADS, -(-units // 32) * 32)


def _counter(x: Csr, drop: Drop) -> tuple[Any, ...]:
    """What the sparse kernels hash for dropout."""
    return (
        np.int64(drop.first_row), np.int64(x.columns), np.uint64(drop.key), np.uint64(drop.limit),
    )  # fmt: skip
