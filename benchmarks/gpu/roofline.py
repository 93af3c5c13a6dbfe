"""The least time that a step can take, from what it must move and multiply.

The output layer has ``L x H`` weights, the batch ``B`` rows with ``f`` features and ``l`` labels
each. In plain SGD with softmax a step must at least

- read the output weights for the logits, read them again for the gradient (the sums over all
  labels stand between the two: 343 MB of weights are in no cache), and write them once:
  ``3 x 4 L H`` bytes. Logits need never reach memory.
- read and write the first layer's rows of the features in use, at most ``B f`` of ``F``, and read
  them once before, in the forward pass: ``3 x 4 H`` bytes for each, if each is read once; and the
  entries themselves, 8 bytes each, in both passes; and the labels, 4 bytes each;
- multiply ``B x H`` by ``H x L`` three times (logits, gradient by the hidden layer, gradient by
  the weights): ``6 B H L`` operations. Multiplying the logits out a second time, so as to keep
  none of them, is a choice that is counted against us: it is not in the floor.

Amazon-670k, B = 1,024, H = 128: 1.03 GB for the output layer and about 0.12 GB for the first, 0.27
ms at 4.3 TB/s; 527 Gflop, 1.3 ms at 400 Tflop/s (TF32) and 0.67 ms at 790 (bf16). So the matrix
units decide, and a step of this code is more than that because logits pass through memory or the
second-level cache: written twice and read five times where they are not kept, 28 bytes for each of
6.9e8, 4.5 ms if they all go to memory and less where a block of them (logits_budget) stays in the
cache. Kept, they pass six times: 24 bytes, 3.8 ms. In float16 each pass is half as long: 12 bytes,
1.9 ms, and 0.1 ms for a copy of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A data set's sizes: columns, and stored entries of a typical row."""

    name: str
    features: int
    labels: int
    row_features: int
    row_labels: int
    hidden: int = 128


SHAPES = (
    Shape(name="amazon-670k", features=135_909, labels=670_091, row_features=75, row_labels=5),
    Shape(name="delicious-200k", features=782_585, labels=205_443, row_features=301, row_labels=75),
)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What a step must move and multiply."""

    moved_bytes: float
    operations: float

    def least_s(self, bytes_s: float, operations_s: float) -> float:
        """The larger of the two times.

        Examples
        --------
        >>> Floor(moved_bytes=4e9, operations=1e12).least_s(4e12, 4e14)
        0.0025
        """
        return max(self.moved_bytes / bytes_s, self.operations / operations_s)


def floor_of(shape: Shape, batch_rows: int, moments: int = 0) -> Floor:
    """The floor of a step with softmax; see the head of this module.

    Parameters
    ----------
    batch_rows
        Rows of the batch.
    moments
        Arrays that the optimizer remembers, each read and written: 2 for Adam.

    Examples
    --------
    >>> floor = floor_of(SHAPES[0], 1024)
    >>> round(floor.moved_bytes / 1e9, 2), round(floor.operations / 1e9)
    (1.15, 527)
    """
    weights = shape.labels * shape.hidden
    entries = batch_rows * shape.row_features
    used = min(entries, shape.features)
    passes = 3 + 2 * moments
    moved = passes * FLOAT_BYTES * (weights + used * shape.hidden)
    moved += 2 * 8 * entries + FLOAT_BYTES * batch_rows * shape.row_labels
    first = 4.0 * entries * shape.hidden
    return Floor(moved_bytes=moved, operations=6.0 * batch_rows * weights + first)
