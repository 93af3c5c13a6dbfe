"""Hash tables over the labels, and when they are built anew.

Weights move while the tables stay; the first rebuilding comes after ``rebuild_every`` rows, and
each of the following after ``rebuild_growth`` times as many as the one before, as weights move less
and less (SLIDE, section 4.2). A merge changes nothing in that: its model lies near the replicas'.
Another model (`forget`) has its tables built with the next batch.

Several threads may share the tables: one of them builds, the others go on with the old ones.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from daskxml.model.sampling.config import SamplingConfig
from daskxml.model.sampling.hashing import HashFamily, SimHash, WinnerHash
from daskxml.model.spec import ModelSpec
from daskxml.ops import Kernels, Lookup
from daskxml.types import Array

_BLOCK_ITEMS = 1 << 16  # looked at to hash a block of labels: little enough to wake no other lane
_LOOKS = 8  # coordinates that a hash function looks at, at the most


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sorted labels of every table, as `daskxml.ops` has them; never changed."""

    starts: Array
    members: Array


class LabelTables:
    """Hash tables of one model's labels.

    Parameters
    ----------
    config
        Of a method that hashes.
    labels, units
        Shape of the output layer's weights.
    seed
        Of the hash functions: the run's.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> kernels, config = get_kernels("cpu", 1), SamplingConfig(method="simhash", k=8, l=4)
    >>> tables = LabelTables(config, labels=50, units=8, seed=0)
    >>> weight = np.random.default_rng(1).standard_normal((50, 8), dtype=np.float32)
    >>> tables.refresh(kernels, weight, np.zeros(50, np.float32), rows=256)
    >>> votes = np.empty((1, 50), np.int32)
    >>> tables.vote(kernels, 99 * weight[[33]], votes)
    >>> int(votes[0].argmax()), int(votes[0].max())
    (33, 4)
    """

    def __init__(self, config: SamplingConfig, labels: int, units: int, seed: int) -> None:
        rng = np.random.default_rng([abs(seed), 11])
        functions = config.functions(labels)
        self._block = max(1, _BLOCK_ITEMS // (config.l * functions * _LOOKS))
        family = SimHash if config.method == "simhash" else WinnerHash
        self.config, self.labels = config, labels
        self.family: HashFamily = family(units, config.l, functions, rng)
        self._keys = np.zeros((config.l, labels), np.int32)
        # rows since the tables were built, rows until they are built again, times they were built
        self._schedule = np.zeros(3, np.int64)
        self._buckets: Buckets | None = None
        self._counting, self._building = threading.Lock(), threading.Lock()

    @property
    def built(self) -> int:
        """How often the tables have been built."""
        return int(self._schedule[2])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and buckets."""
        held = self._buckets
        return int(self._keys.nbytes) + (0 if held is None else held.members.nbytes)

    def refresh(self, kernels: Kernels, weight: Array, bias: Array, rows: int) -> None:
        """Build the tables if it is time; ``rows`` are about to be looked up.

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
                self._build(kernels, weight, bias, rows)
        finally:
            self._building.release()

    def vote(self, kernels: Kernels, hidden: Array, votes: Array) -> None:
        """Count in ``votes (lanes, labels)`` int32 how often rows and labels share a bucket."""
        found = self.lookup(kernels, hidden)
        kernels.count_votes(votes, found.keys, found.starts, found.members)

    def lookup(self, kernels: Kernels, hidden: Array) -> Lookup:
        """Find the buckets of rows whose last hidden layer is ``hidden (rows, units)``."""
        buckets = self._buckets
        assert buckets is not None, "refresh comes first"
        keys = kernels.empty((self.config.l, int(hidden.shape[0])), "int32")
        self.family.row_keys(kernels, hidden, keys)
        return Lookup(keys, buckets.starts, buckets.members)

    def forget(self) -> None:
        """The model is another one: the next batch builds the tables as if for the first time."""
        self._buckets = None
        self._schedule[:] = 0

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold to go on with the same bits.

        Returns
        -------
        dict
            ``keys`` ``(tables, labels)`` int32 of the labels, and ``schedule`` ``(3,)`` int64. The
            arrays are the tables' own: write into them, and `resume`.
        """
        return {"keys": self._keys, "schedule": self._schedule}

    def resume(self, kernels: Kernels) -> None:
        """Go on with what was written into `state`."""
        self._buckets = self._sorted(kernels) if self.built else None

    def _build(self, kernels: Kernels, weight: Array, bias: Array, rows: int) -> None:
        def hash_block(lane: int, start: int, stop: int) -> None:
            keys = kernels.empty((self.config.l, stop - start), "int32")
            self.family.label_keys(kernels, weight[start:stop], bias[start:stop], keys)
            self._keys[:, start:stop] = keys

        kernels.for_label_blocks(self.labels, self._block, hash_block)
        self._buckets = self._sorted(kernels)
        with self._counting:
            growth = self.config.rebuild_growth**self.built
            wait = min(self.config.rebuild_every * growth, 2.0**62)
            self._schedule[:] = rows, int(wait), self.built + 1

    def _sorted(self, kernels: Kernels) -> Buckets:
        starts = kernels.empty((self.config.l, self.family.buckets + 1), "int32")
        members = kernels.empty(self._keys.shape, "int32")
        kernels.fill_buckets(starts, members, self._keys)
        return Buckets(starts, members)


def label_tables(config: SamplingConfig, spec: ModelSpec, seed: int) -> LabelTables | None:
    """Return empty tables for a model; None where the method has none.

    Examples
    --------
    >>> label_tables(SamplingConfig(method="random"), ModelSpec(features=3, labels=9), 0) is None
    True
    """
    if not config.hashes:
        return None
    return LabelTables(config, spec.labels, spec.widths[-2], seed)
