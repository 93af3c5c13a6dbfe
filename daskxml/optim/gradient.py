"""Gradients that are kept instead of applied, for algorithms that exchange them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from daskxml.ops import Drop, Kernels, RowGradient, RowSums
from daskxml.types import Array, Csr


class GradientArrays:
    """Adds the gradients of a step to arrays, by name.

    Parameters
    ----------
    views
        An array of each parameter's shape, changed in place.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> arrays = GradientArrays(kernels, {"b": kernels.zeros(2)})
    >>> arrays.dense("b", kernels.zeros(2) + 1, lr=0.1)
    >>> arrays.views["b"]
    array([1., 1.], dtype=float32)
    """

    def __init__(self, kernels: Kernels, views: Mapping[str, Array]) -> None:
        self._kernels, self.views = kernels, dict(views)

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """Add ``grad`` to ``rows``; the rate is not asked for."""
        self._kernels.add_scaled(self.views[name][rows].reshape(-1), grad.reshape(-1), 1.0)

    def product(
        self, name: str, rows: slice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> None:
        """Add ``scale * left.T @ right`` to ``rows``."""
        self._kernels.gemm(self.views[name][rows], left.T, right, scale, 1.0)

    def chosen(self, name: str, ids: Array, grad: Array, lr: float) -> None:
        """Add ``grad`` to the rows ``ids``."""
        view = self.views[name]
        gradient = RowGradient(grad.reshape(int(ids.shape[0]), -1), ids)
        self._kernels.sgd_rows(view.reshape(int(view.shape[0]), -1), gradient, -1.0, 1.0)

    def chosen_product(self, name: str, ids: Array, left: Array, right: Array, lr: float) -> None:
        """Add ``left.T @ right`` to the rows ``ids``."""
        slope = self._kernels.empty((int(ids.shape[0]), int(right.shape[1])))
        self._kernels.gemm(slope, left.T, right)
        self.chosen(name, ids, slope, lr)

    def chosen_sums(self, name: str, sums: RowSums, x: Array, lr: float) -> None:
        """Add the sums of rows of ``x`` to the rows ``sums.ids``, a few at a time."""
        width = int(x.shape[1])
        chunk = max(1, self._kernels.gradient_floats // width)
        for start in range(0, sums.count, chunk):
            stop = min(start + chunk, sums.count)
            slope = self._kernels.empty((stop - start, width))
            starts = sums.starts[start : stop + 1]
            self._kernels.gather_rows(slope, starts, sums.rows, sums.values, x)
            self.chosen(name, sums.ids[start:stop], slope, lr)

    def sparse_product(
        self, name: str, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> None:
        """Add ``x[rows].T @ delta``; rows of features that are not in use stay as they are."""
        self._kernels.sparse_update(self.views[name], x, rows, delta, 1.0, drop)

    def clear(self) -> None:
        """Start again from zero."""
        for array in self.views.values():
            self._kernels.fill(array, 0.0)


class GradientBuffer(GradientArrays):
    """A gradient in one flat array, as a model's parameters lie in theirs.

    Parameters
    ----------
    size, views
        Floats of the flat array, and the parameters by name in such an array:
        ``Layout.size`` and ``Layout.views``.

    Attributes
    ----------
    flat
        ``(size,)`` float32, zero at first. Others may write into it: sum it over workers.
    views
        Its parts, by name.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> buffer = GradientBuffer(kernels, 4, lambda flat: {"w": flat[:2], "b": flat[2:]})
    >>> buffer.dense("b", kernels.zeros(2) + 1, lr=0.1)
    >>> buffer.flat
    array([0., 0., 1., 1.], dtype=float32)
    """

    def __init__(
        self, kernels: Kernels, size: int, views: Callable[[Array], Mapping[str, Array]]
    ) -> None:
        self.flat = kernels.zeros(size)
        super().__init__(kernels, views(self.flat))

    def clear(self) -> None:
        """Start again from zero, whoever wrote what: one fill at the memory's speed."""
        self._kernels.fill(self.flat, 0.0)
