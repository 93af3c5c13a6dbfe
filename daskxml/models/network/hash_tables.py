"""Hash tables that find the labels whose weights are near a row's last hidden layer.

A label and a row that scores it high tend to share a key. `SimHash` (Charikar, "Similarity
Estimation Techniques from Rounding Algorithms", STOC 2002): one bit for each of K random planes, so
two vectors at the angle ``a`` share a key with probability ``(1 - a / pi) ** K``. `WinnerHash`
(Chen and Shrivastava, "Densified Winner Take All (WTA) Hashing for Sparse Datasets", UAI 2018):
which of 8 random coordinates is the largest. A logit is ``w . h + b``, so SimHash hashes ``(w, b)``
and ``(h, 1)``; winners are those of ``w`` and ``h``.

Weights move while the tables stay. The first rebuild comes after ``rebuild_every`` rows, each of
the following after ``rebuild_growth`` times as many as the one before, as weights move less and
less (SLIDE, section 4.2). A merge does not change the schedule: the merged model is near the
replicas. After `LabelTables.reset`, for another model, the next batch builds the tables. Several
threads may share the tables: one of them builds, the others continue with the old ones.
"""

from __future__ import annotations

import threading

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.cpu import sampling
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.kernels.operands import Lookup
from daskxml.models.network.sampling import WINNER_BITS, SamplingConfig

_BLOCK_ITEMS = 1 << 16  # read to hash a block of labels: too few to wake another thread
_HASH_COORDINATES = 8  # the most that one hash function reads


class SimHash:
    """Signs of projections on random planes; ``buckets`` is the number of possible keys.

    Parameters
    ----------
    units
        Width of the vectors.
    tables, bits
        Keys for each vector, and bits of a key.
    rng
        Draws the planes.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> kernels, family = get_kernels("cpu", 1), SimHash(3, 2, 4, np.random.default_rng(0))
    >>> keys = np.empty((2, 2), np.int32)
    >>> weight = np.array([[1, 2, 3], [-1, -2, -3]], np.float32)
    >>> family.label_keys(kernels, weight, np.zeros(2, np.float32), keys)
    >>> family.buckets, (keys[:, 0] + keys[:, 1]).tolist()  # opposite vectors: opposite bits
    (16, [15, 15])
    """

    def __init__(self, units: int, tables: int, bits: int, rng: np.random.Generator) -> None:
        planes = rng.standard_normal((units + 1, tables * bits), dtype=np.float32)
        self.planes, self.bias_weights = planes[:-1], planes[-1].copy()
        self.buckets = 1 << bits

    def label_keys(self, kernels: CpuKernels, weight: Array, bias: Array, out: Array) -> None:
        """Fill ``out (tables, count)`` int32 for ``weight (count, units)``, ``bias (count,)``."""
        projected = kernels.empty((int(weight.shape[0]), int(self.planes.shape[1])))
        kernels.gemm(projected, weight, self.planes)
        sampling.sign_keys(kernels.team, out, projected, bias, self.bias_weights)

    def row_keys(self, kernels: CpuKernels, hidden: Array, out: Array) -> None:
        """Fill ``out (tables, rows)`` int32 for ``(hidden, 1)``, the last hidden layer."""
        ones = kernels.empty((int(hidden.shape[0]),))
        kernels.fill(ones, 1.0)
        self.label_keys(kernels, hidden, ones, out)


class WinnerHash:
    """Winners among 8 coordinates, or 4 or 2 where there are no more.

    Each random permutation of the coordinates is cut into bins. Zeros of a row do not compete, and
    an empty bin borrows the winner of another (densification).

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> kernels, family = get_kernels("cpu", 1), WinnerHash(16, 3, 2, np.random.default_rng(0))
    >>> keys = np.empty((3, 2), np.int32)
    >>> hidden = np.arange(16, dtype=np.float32) * np.array([[1], [7]], np.float32)
    >>> family.row_keys(kernels, hidden, keys)
    >>> family.buckets, bool((keys[:, 0] == keys[:, 1]).all())  # only the order counts
    (64, True)
    """

    def __init__(self, units: int, tables: int, winners: int, rng: np.random.Generator) -> None:
        size = 1 << min(WINNER_BITS, max(0, units.bit_length() - 1))
        count, each = tables * winners, units // size
        drawn = [rng.permutation(units)[: each * size] for _ in range(-(-count // each))]
        bins = np.concatenate(drawn).reshape(-1, size)[:count]
        self.bins = bins.reshape(tables, winners, size).astype(np.int32)
        self.buckets = size**winners

    def label_keys(self, kernels: CpuKernels, weight: Array, bias: Array, out: Array) -> None:
        """Hash ``weight``; the bias, the same for all rows, changes no winner."""
        sampling.winner_keys(kernels.team, out, weight, self.bins, skips_zeros=False)

    def row_keys(self, kernels: CpuKernels, hidden: Array, out: Array) -> None:
        """Hash ``hidden``."""
        sampling.winner_keys(kernels.team, out, hidden, self.bins, skips_zeros=True)


class LabelTables:
    """Hash tables of one model's labels.

    Parameters
    ----------
    config
        Settings with a method that hashes.
    labels, units
        Shape of the output layer's weights.
    seed
        Of the hash functions: the run's.

    Attributes
    ----------
    keys
        ``(tables, labels)`` int32: those of the last build.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> kernels, config = get_kernels("cpu", 1), SamplingConfig(method="simhash", k=8, l=4)
    >>> tables = LabelTables(config, labels=50, units=8, seed=0)
    >>> weight = np.random.default_rng(1).standard_normal((50, 8), dtype=np.float32)
    >>> tables.refresh(kernels, weight, np.zeros(50, np.float32), rows=256)
    >>> found = tables.lookup(kernels, 99 * weight[[33]])
    >>> (found.keys[:, 0] == tables.keys[:, 33]).tolist()
    [True, True, True, True]
    """

    def __init__(self, config: SamplingConfig, labels: int, units: int, seed: int) -> None:
        rng = np.random.default_rng([abs(seed), 11])
        functions = config.functions(labels)
        self._block = max(1, _BLOCK_ITEMS // (config.l * functions * _HASH_COORDINATES))
        family = SimHash if config.method == "simhash" else WinnerHash
        self.config, self.labels = config, labels
        self.family: SimHash | WinnerHash = family(units, config.l, functions, rng)
        self.keys = np.zeros((config.l, labels), np.int32)
        # rows since the tables were built, rows until they are built again, times they were built
        self._schedule = np.zeros(3, np.int64)
        # labels of every table sorted by key: where each bucket starts, and its members
        self._buckets: tuple[Array, Array] | None = None
        self._counting, self._building = threading.Lock(), threading.Lock()

    @property
    def built(self) -> int:
        """How often the tables have been built."""
        return int(self._schedule[2])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and buckets."""
        held = self._buckets
        return int(self.keys.nbytes) + (0 if held is None else int(held[1].nbytes))

    def refresh(self, kernels: CpuKernels, weight: Array, bias: Array, rows: int) -> None:
        """Build the tables if that is due; ``rows`` are about to be looked up.

        ``weight`` is ``(labels, units)`` and ``bias`` ``(labels,)``. While another thread builds,
        this returns, unless there are no tables yet.
        """
        with self._counting:
            is_due = self._buckets is None or self._schedule[0] >= self._schedule[1]
            self._schedule[0] += rows
        if not is_due or not self._building.acquire(blocking=self._buckets is None):
            return
        try:
            if self._buckets is None or self._schedule[0] - rows >= self._schedule[1]:
                self._hash_labels(kernels, weight, bias)
                self._build(kernels, rows)
        finally:
            self._building.release()

    def _hash_labels(self, kernels: CpuKernels, weight: Array, bias: Array) -> None:
        """Fill `keys`."""

        def hash_block(lane: int, start: int, stop: int) -> None:
            found = kernels.empty((self.config.l, stop - start), "int32")
            self.family.label_keys(kernels, weight[start:stop], bias[start:stop], found)
            self.keys[:, start:stop] = found

        kernels.for_label_blocks(self.labels, self._block, hash_block)

    def _build(self, kernels: CpuKernels, rows: int) -> None:
        """Build the tables of `keys`; ``rows`` are about to be looked up in them."""
        self._buckets = self._sorted(kernels)
        with self._counting:
            growth = self.config.rebuild_growth**self.built
            wait = min(self.config.rebuild_every * growth, 2.0**62)
            self._schedule[:] = rows, int(wait), self.built + 1

    def lookup(self, kernels: CpuKernels, hidden: Array) -> Lookup:
        """Find the buckets of rows by their last hidden layer ``(rows, units)``."""
        assert self._buckets is not None, "refresh comes first"
        keys = kernels.empty((self.config.l, int(hidden.shape[0])), "int32")
        self.family.row_keys(kernels, hidden, keys)
        return Lookup(keys, *self._buckets)

    def reset(self) -> None:
        """Discard the tables, for another model: the next batch builds them."""
        self._buckets = None
        self._schedule[:] = 0

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold to resume with the same bits.

        Returns
        -------
        dict
            ``keys`` ``(tables, labels)`` int32 of the labels, and ``schedule`` ``(3,)`` int64.
            These are the tables' own arrays: write into them, then call `resume`.
        """
        return {"keys": self.keys, "schedule": self._schedule}

    def resume(self, kernels: CpuKernels) -> None:
        """Use what was written into `state`."""
        self._buckets = self._sorted(kernels) if self.built else None

    def _sorted(self, kernels: CpuKernels) -> tuple[Array, Array]:
        starts = kernels.empty((self.config.l, self.family.buckets + 1), "int32")
        members = kernels.empty(self.keys.shape, "int32")
        sampling.fill_buckets(kernels.team, starts, members, self.keys)
        return starts, members
