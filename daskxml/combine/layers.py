"""The layers of a flat array: which of them a piece of it touches, and their dot products."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from daskxml.combine.adasum import Segment
from daskxml.combine.kernels import CombineKernels
from daskxml.types import Array


class Layers:
    """The segments of a flat array, which are combined each on its own.

    This is the bookkeeping of tensor boundaries in a fused tensor of Maleki et al. 2021, section
    4.4.3: small layers travel in one message with their neighbours.

    Parameters
    ----------
    segments
        Ascending, without overlap. What lies between them (the padding of a model) is moved but
        not combined.

    Examples
    --------
    >>> layers = Layers([("a", 0, 5), ("b", 8, 10)])
    >>> list(layers.within(3, 9))
    [(0, slice(3, 5, None)), (1, slice(8, 9, None))]
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.names = [name for name, _, _ in segments]
        self._starts = [start for _, start, _ in segments]
        self._stops = [stop for _, _, stop in segments]
        assert all(a <= b for a, b in zip(self._stops, self._starts[1:], strict=False))

    def __len__(self) -> int:
        return len(self.names)

    def within(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """Yield the layers that ``start .. stop - 1`` touches, and where they do."""
        for layer in range(max(0, bisect_right(self._starts, start) - 1), len(self)):
            if self._starts[layer] >= stop:
                return
            first, last = max(start, self._starts[layer]), min(stop, self._stops[layer])
            if first < last:
                yield layer, slice(first, last)

    @np.errstate(invalid="ignore")  # what is not finite shows in the result
    def add_dots(
        self, sums: Array, x: Array, y: Array, start: int, stop: int, kernels: CombineKernels
    ) -> None:
        """Add the dot products of a piece to ``sums (3, layers)`` float64: x.y, x.x and y.y.

        ``x`` and ``y`` are ``(stop - start,)`` and lie at ``start`` in the flat array.
        """
        for layer, part in self.within(start, stop):
            here = slice(part.start - start, part.stop - start)
            for row, value in enumerate(kernels.dots(x[here], y[here])):
                sums[row, layer] += value

    def weigh(
        self,
        x: Array,
        x_factors: Sequence[float],
        y: Array,
        y_factors: Sequence[float],
        start: int,
        stop: int,
        kernels: CombineKernels,
    ) -> None:
        """Make a piece ``x`` of the flat array ``x_factors * x + y_factors * y``, layer by layer.

        ``x`` and ``y`` are ``(stop - start,)`` and lie at ``start`` in the flat array; there is one
        factor for each layer.
        """
        for layer, part in self.within(start, stop):
            out, other = x[part.start - start : part.stop - start], y[part.start - start :]
            other = other[: out.shape[0]]
            kernels.weigh_two(out, out, float(x_factors[layer]), other, float(y_factors[layer]))
