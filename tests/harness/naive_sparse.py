"""Naive twins of the kernels on sparse rows."""

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.operands import KEEP_ALL, DeviceCount, Drop
from harness.naive_dense import drop_factors


def dense_rows(x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> Array:
    """``x[rows]`` as a dense float64 matrix.

    Examples
    --------
    >>> x = Csr(np.array([0, 1]), np.array([2], np.int32), None, 3)
    >>> dense_rows(x, np.array([0, 0]))
    array([[0., 0., 1.],
           [0., 0., 1.]])
    """
    out = np.zeros((len(rows), x.columns))
    for i, row in enumerate(rows):
        for j in range(x.indptr[row], x.indptr[row + 1]):
            out[i, x.indices[j]] = 1.0 if x.data is None else x.data[j]
    return out * drop_factors(*out.shape, drop)


class NaiveSparse:
    """Implements :class:`daskxml.kernels.Kernels` in plain NumPy."""

    def nonzeros(self, x: Csr, rows: Array) -> int:
        return sum(int(x.indptr[row + 1] - x.indptr[row]) for row in rows)

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        out[:] = [x.indptr[row + 1] - x.indptr[row] for row in rows]

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        out[:] = dense_rows(x, rows, drop) @ weight + bias

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        weight += (factor * (dense_rows(x, rows, drop).T @ delta)).astype(weight.dtype)

    def stage_rows(self, out, begins, pieces, rows, drop=KEEP_ALL) -> None:
        factors = drop_factors(rows, out.columns, drop)
        matrices = [x for x, count in pieces for _ in range(count)]
        out.indices[:] = -1
        for row, x in enumerate(matrices):
            for k in range(out.indptr[row], out.indptr[row + 1]):
                j = begins[row] + k - out.indptr[row]
                out.indices[k], out.row_numbers[k] = x.indices[j], row
                out.data[k] = 1.0 if x.data is None else x.data[j]
                out.data[k] *= factors[row, x.indices[j]]

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, row_offset: int, drop: Drop
    ) -> int:
        factors, count = drop_factors(len(rows), x.columns, drop), 0
        for i, row in enumerate(rows):
            for j in range(x.indptr[row], x.indptr[row + 1]):
                column, value = x.indices[j], 1.0 if x.data is None else x.data[j]
                if factors[i, column]:
                    out[0][count], out[1][count] = column, row_offset + i
                    out[2][count] = value * factors[i, column]
                    count += 1
        return count

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        out[:] = dense_rows(x, rows, drop)

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], counts: Array,
    ) -> tuple[int, Array | None]:  # fmt: skip
        held: dict[int, list[tuple[int, float]]] = {}
        for column, row, value in zip(*entries, strict=True):
            held.setdefault(int(column), []).append((row, value))
        starts[0] = 0
        for i, (feature, pairs) in enumerate(held.items()):
            features[i], starts[i + 1] = feature, starts[i] + len(pairs)
            span = slice(starts[i], starts[i + 1])
            rows[span], values[span] = zip(*pairs, strict=True)
        return len(held), None

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array,
        device_count: DeviceCount | None = None,
    ) -> None:  # fmt: skip
        for i in range(len(out)):
            span = slice(starts[i], starts[i + 1])
            out[i] = values[span] @ delta[rows[span]]
