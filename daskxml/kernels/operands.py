"""What kernels take beside arrays and rows: settings of a step, gradients, samples, trees.

Symbols are those of `daskxml.kernels.contract`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, Segment

T = TypeVar("T")
DeviceCount = tuple[Array, int]  # (1,) int32 on the device, and the number of the first row
LabelWork = Callable[[int, int, int], None]  # (thread, first label, label after the last)
ROW_BLOCK: Final = 512  # the most labels whose logits are computed before they are used
NO_ROWS_BIAS = -1.0  # of children of a node that no row has labels below
QUANTUM = 2.0**-24  # multiples of it are summed exactly in float64 up to 2**29
COARSE = 2.0**-13  # of two factors: products are summed exactly up to 2**27
BITS = (8, 16)
FINE = 2 * 127  # the second digit of a quantised number counts 1 / 254 of the first
_MOST = 127  # of a digit, and minus it the least
_CHUNK_ROWS = 4096  # rounded at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """What the memory of a training step depends on.

    Attributes
    ----------
    rows, nonzeros
        Rows of the batch, and their stored features.
    features, labels
        Columns of the input and of the output.
    units
        Width of the widest hidden layer.
    """

    rows: int
    nonzeros: int
    features: int
    labels: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Which entries dropout zeroes: a hash of their position in the batch, equal on any device.

    Entry ``(row, column)`` is kept if the upper half of number ``(first_row + row) * columns +
    column`` of SplitMix64's stream ``key`` is at least ``rate * 2**32``; kept values are divided
    by ``1 - rate``.

    Attributes
    ----------
    rate
        Share that is dropped, in [0, 1); 0 keeps everything.
    key
        64 bits: the stream.
    first_row
        Position in the batch of the array's first row (a segment's offset).

    Examples
    --------
    >>> Drop(rate=0.5, key=7).scale
    2.0
    """

    rate: float = 0.0
    key: int = 0
    first_row: int = 0

    @property
    def limit(self) -> int:
        """The rate as a 32-bit threshold."""
        return int(self.rate * 2.0**32)

    @property
    def scale(self) -> float:
        """The factor of kept values."""
        return 1.0 / (1.0 - self.rate)


KEEP_ALL = Drop()


class DeviceNumber(float):
    """A factor times a float32 in device memory, which a captured step reads when it is replayed.

    As a float it is not a number: a kernel that does not read the memory gives itself away.

    Examples
    --------
    >>> rate = -DeviceNumber(np.float32([0.1])) * 3.0 / 2.0
    >>> rate.factor, float(rate)
    (-1.5, nan)
    """

    place: Array
    factor: float

    def __new__(cls, place: Array, factor: float = 1.0) -> DeviceNumber:
        """Make one of an array ``(1,)`` float32 on the device."""
        made = super().__new__(cls, math.nan)
        made.place, made.factor = place, factor
        return made

    def __mul__(self, other: float) -> DeviceNumber:
        return DeviceNumber(self.place, self.factor * other)

    def __truediv__(self, other: float) -> DeviceNumber:
        return DeviceNumber(self.place, self.factor / other)

    def __neg__(self) -> DeviceNumber:
        return DeviceNumber(self.place, -self.factor)


class DeviceKey(int):
    """The key of a random stream in device memory, followed by those of the streams after it.

    Examples
    --------
    >>> DeviceKey(np.arange(3, dtype=np.uint64)).of_stream(2).place
    array([2], dtype=uint64)
    """

    place: Array

    def __new__(cls, place: Array) -> DeviceKey:
        """Make one of an array ``(streams,)`` uint64 on the device."""
        made = super().__new__(cls)
        made.place = place
        return made

    def of_stream(self, number: int) -> DeviceKey:
        """Return the key of another stream."""
        return DeviceKey(self.place[number:])


@dataclass(frozen=True, slots=True)
class InPlace:
    """Where a parameter's gradient goes at once: ``target = keep * target + factor * gradient``."""

    target: Array
    factor: float
    keep: float


@dataclass(frozen=True, slots=True)
class RowGradient:
    """The gradient of some rows of a matrix.

    Attributes
    ----------
    values
        ``(count, width)``.
    ids
        ``(count,)`` int32, distinct: the rows of the matrix; None for all rows in order.
    skip_zero_rows
        Leave a row and its moments unchanged if its gradient is zero throughout.
    scale
        Factor of the values.
    device_count
        With ``skip_zero_rows``, where ``count`` is an upper bound: where the device has the true
        count, and the number of the first row. Rows beyond it are left unchanged.

    Examples
    --------
    >>> RowGradient(np.zeros((2, 3), np.float32)).scale
    1.0
    """

    values: Array
    ids: Array | None = None
    skip_zero_rows: bool = False
    scale: float = 1.0
    device_count: DeviceCount | None = None


@dataclass(frozen=True, slots=True)
class RowSums:
    """The gradient of some rows of a matrix, each as a sum of scaled rows of another, ``x``.

    Row ``ids[i]`` has ``sum of values[e] * x[rows[e]]``, ``e`` in ``starts[i] .. starts[i + 1]``.

    Attributes
    ----------
    ids
        ``(count,)`` int32, distinct.
    starts
        ``(count + 1,)`` int64.
    rows, values
        ``(entries,)`` int32 and float32.
    device_count
        As in `RowGradient`.

    Examples
    --------
    >>> ids, starts = np.array([4, 2], np.int32), np.array([0, 1, 3])
    >>> RowSums(ids, starts, np.zeros(3, np.int32), np.ones(3, np.float32)).count
    2
    """

    ids: Array
    starts: Array
    rows: Array
    values: Array
    device_count: DeviceCount | None = None

    @property
    def count(self) -> int:
        """The number of rows that change, or an upper bound of it."""
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStep:
    """The constants of one step by an optimizer's rule.

    Attributes
    ----------
    lr, beta1, beta2, epsilon, weight_decay
        As the papers of Adam (Kingma and Ba 2015) and LAMB (You et al. 2020) name them.
    step
        Number of the step, from 1.
    momentum, is_nesterov
        Of the rule ``momentum``.

    Examples
    --------
    >>> adam = RuleStep(lr=0.1, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.5, step=1)
    >>> round(adam.first_factor, 6), round(adam.second_root, 6), adam.keep
    (10.0, 10.0, 0.95)
    """

    lr: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    step: int
    momentum: float = 0.0
    is_nesterov: bool = False

    @property
    def keep(self) -> float:
        """The share of a weight that weight decay leaves in this step (AdamW)."""
        return 1.0 - self.lr * self.weight_decay

    @property
    def first_factor(self) -> float:
        """Bias correction of the first moment: ``1 / (1 - beta1**step)``."""
        return 1.0 / (1.0 - self.beta1**self.step)

    @property
    def second_root(self) -> float:
        """Bias correction of the second moment's root: ``1 / sqrt(1 - beta2**step)``."""
        return 1.0 / math.sqrt(1.0 - self.beta2**self.step)

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """``beta1, 1 - beta1, beta2, 1 - beta2``: float32 could not form the differences."""
        return self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNet:
    """A multi-layer perceptron of at least one hidden layer, and scratch memory for one row.

    Attributes
    ----------
    flat
        ``(n,)`` float32: all parameters.
    places
        ``(layers, 4)`` int64: where each layer's weights and biases begin in ``flat``, its inputs
        and its outputs; the output layer last. Weights are ``(inputs, outputs)``, but those of the
        output layer ``(outputs, inputs)``: a row for each label.
    scratch
        ``(scratch_floats(places),)`` float32, contents arbitrary.
    activation
        ``relu`` or ``sigmoid``, of the hidden layers.
    loss
        ``softmax`` or ``sigmoid``.
    """

    flat: Array
    places: Array
    scratch: Array
    activation: str
    loss: str


def scratch_floats(places: Array) -> int:
    """Return the floats that one row needs: activations, their gradients, and logits.

    Examples
    --------
    >>> scratch_floats(np.array([[0, 12, 3, 4], [16, 36, 4, 5]]))
    1037
    """
    return 2 * int(places[:-1, 3].sum()) + int(places[-1, 3]) + 2 * ROW_BLOCK


@dataclass(frozen=True, slots=True)
class RowSamples:
    """The labels of each row of a batch that the loss is computed over, in flat arrays.

    Attributes
    ----------
    starts
        ``(rows + 1,)`` int64: row ``i`` has ``ids[starts[i]:starts[i + 1]]``.
    ids
        ``(pairs,)`` int32 labels, distinct in a row: the row's targets, those from its buckets,
        those drawn uniformly.
    rows
        ``(pairs,)`` int32: the row of the batch that each belongs to.
    own
        ``(rows,)`` int32: how many of a row's labels are targets.

    Examples
    --------
    >>> ids, rows = np.array([7, 2, 9], np.int32), np.array([0, 0, 1], np.int32)
    >>> samples = RowSamples(np.array([0, 2, 3]), ids, rows, rows)
    >>> samples.ids[samples.starts[0] : samples.starts[1]]
    array([7, 2], dtype=int32)
    """

    starts: Array
    ids: Array
    rows: Array
    own: Array

    @property
    def pairs(self) -> int:
        """How many logits a step computes."""
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True)
class Lookup:
    """The buckets of the rows of a batch.

    Attributes
    ----------
    keys
        ``(tables, rows)`` int32: the bucket of each row in every hash table.
    starts, members
        Labels by bucket, see `daskxml.kernels.cpu.sampling.fill_buckets`.
    """

    keys: Array
    starts: Array
    members: Array


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """What some children of a node are fitted to: the squared hinge of every child on its own.

    Attributes
    ----------
    rows
        ``(count,)`` int64, ascending: the rows with labels below the node.
    children
        ``(count, children)``, ones: which of these children each row has labels below.
    key
        64 bits that give the order of the rows: a node's, whichever of its children these are.
    costs
        ``(children,)`` float32: C of each child, what the loss counts against half the weights'
        squared norm.
    row_weights
        ``(count,)`` float32: what a row's loss counts; None: 1.
    child_weights
        ``(children,)`` float32: what it counts besides for a child that is the row's own; None: 1.
    """

    rows: Array
    children: Csr
    key: int
    costs: Array
    row_weights: Array | None = None
    child_weights: Array | None = None


class FittedBlock(NamedTuple):
    """The scores of some children of a node, without the weights that are too small to keep.

    Attributes
    ----------
    bias
        ``(children,)`` float32.
    features, counts
        ``(chunks,)`` int32: features that have weights, ascending, and how many each has.
    children, weights
        uint16 and float32: the weights of each feature in turn, by the child within the block.
    """

    bias: Array
    features: Array
    counts: Array
    children: Array
    weights: Array


@dataclass(frozen=True, slots=True)
class TreeArrays:
    """The weights of a tree.

    Attributes
    ----------
    levels
        Levels of nodes.
    child_starts
        ``(nodes + 1,)`` int64: the first child of every node, a node or a leaf; from 1 on.
    bias
        ``(nodes + leaves - 1,)`` float32: of every child, from number 1 on.
    node_starts
        ``(nodes + 1,)`` int64: the first chunk of every node.
    features
        ``(chunks,)`` int32, ascending within a node.
    chunk_starts
        ``(chunks + 1,)`` int64: the first weight of every chunk.
    children, weights
        ``(weights,)`` uint16 and float32: a child within its node, and its weight.
    """

    levels: int
    child_starts: Array
    bias: Array
    node_starts: Array
    features: Array
    chunk_starts: Array
    children: Array
    weights: Array


@dataclass(frozen=True, slots=True)
class TreeWeights:
    """A tree's weights, and the hash table by which a node finds the chunk of a feature.

    ``widest`` is the most children of a node.
    """

    arrays: TreeArrays
    table: Array
    widest: int


@dataclass(frozen=True, slots=True)
class Quantised:
    """A float32 matrix, ``scale * (first + second / 254)`` in each row.

    NumPy, and whoever slices it, sees float32 numbers.

    Attributes
    ----------
    first
        ``(rows, columns)`` int8.
    second
        The same, or ``(0, columns)`` for 8 bits a number.
    scale
        ``(rows,)`` float32.

    Raises
    ------
    ValueError
        If the arrays do not belong together.

    Examples
    --------
    >>> matrix = np.float32([[1.0, 0.5, -0.3], [0.0, 0.0, 0.0]])
    >>> errors = [np.abs(np.asarray(quantise(matrix, bits)) - matrix).max() for bits in (8, 16)]
    >>> [bool(error < bound) for error, bound in zip(errors, (4e-3, 2e-5), strict=True)]
    [True, True]
    """

    first: Array
    second: Array
    scale: Array

    dtype = np.dtype(np.float32)

    def __post_init__(self) -> None:
        kinds = [str(array.dtype) for array in (self.first, self.second, self.scale)]
        rows, columns = self.first.shape if self.first.ndim == 2 else (-1, -1)
        is_whole = self.second.shape in ((rows, columns), (0, columns))
        if kinds != ["int8", "int8", "float32"] or not is_whole or self.scale.shape != (rows,):
            shapes = [array.shape for array in (self.first, self.second, self.scale)]
            raise ValueError(f"{kinds} of shapes {shapes} are not the parts of a quantised matrix")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.first.shape
        return int(rows), int(columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return int(self.first.nbytes + self.second.nbytes + self.scale.nbytes)

    def __len__(self) -> int:
        return int(self.first.shape[0])

    def __getitem__(self, rows: Any) -> Array:
        """Unpack some rows, by a slice, an array of numbers or one number."""
        out = self.first[rows].astype(np.float32)
        if len(self.second):
            out += np.float32(1 / FINE) * self.second[rows]
        out *= self.scale[rows][..., None]
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Unpack everything."""
        return self[:].astype(dtype or np.float32, copy=False)


def quantise(matrix: Array, bits: int) -> Quantised:
    """Round a matrix to 8 or 16 bits a number, the largest of each row to 127 times its scale.

    Parameters
    ----------
    matrix
        ``(rows, columns)`` float32, finite.
    bits
        8 or 16.
    """
    rows, columns = matrix.shape
    first = np.empty((rows, columns), np.int8)
    second = np.empty((rows if bits == BITS[1] else 0, columns), np.int8)
    scale = np.empty(rows, np.float32)
    for start in range(0, rows, _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        scale[part] = np.abs(matrix[part]).max(axis=1, initial=0.0) / np.float32(_MOST)
        scale[part][scale[part] == 0.0] = 1.0
        shares = matrix[part] / scale[part, None]
        first[part] = np.rint(shares).clip(-_MOST, _MOST)
        if len(second):
            second[part] = np.rint((shares - first[part]) * FINE).clip(-_MOST, _MOST)
    return Quantised(first, second, scale)


def relocate(value: T, move: Callable[[Array], Array]) -> T:
    """Apply ``move`` to every array of an array, ``Csr``, ``Partition`` or ``Segment``.

    Returns the very same object if ``move`` changed nothing.

    Examples
    --------
    >>> x = Csr(np.array([0, 1]), np.array([2], np.int32), None, 3)
    >>> relocate(x, np.asarray) is x
    True
    """
    if value is None or isinstance(value, int):
        return value
    if not isinstance(value, Csr | Partition | Segment | TreeArrays):
        return cast(T, move(value))
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    moved = {name: relocate(part, move) for name, part in parts.items()}
    is_same = all(moved[name] is part for name, part in parts.items())
    return value if is_same else replace(value, **moved)


def orientation(matrix: Array) -> tuple[bool, int]:
    """Whether BLAS reads a matrix as transposed, and the distance of its rows, or columns.

    Raises
    ------
    ValueError
        If the matrix is strided in both directions, which no BLAS can read.

    Examples
    --------
    >>> matrix = np.zeros((2, 3))
    >>> orientation(matrix), orientation(matrix.T)
    ((False, 3), (True, 3))
    """
    rows, columns = matrix.shape
    if rows == 0 or columns == 0:
        return False, max(1, columns)
    down, across = (stride // matrix.itemsize for stride in matrix.strides)
    if across == 1 or columns == 1:
        return False, down if rows > 1 else max(1, columns)
    if down == 1 or rows == 1:
        return True, across if columns > 1 else max(1, rows)
    raise ValueError(f"gemm needs C or F order, not strides {matrix.strides} of {matrix.shape}")
