"""Training the output layer on a sample of the labels: settings, and what a sample is.

A sample is drawn evenly for a batch as a whole, or for each of its rows, where hash tables over the
layer's weights find half of it, after SLIDE (Chen et al., "SLIDE: In Defense of Smart Algorithms
over Hardware Acceleration for Large-Scale Deep Learning Systems", MLSys 2020). Only the sampled
rows of the weights, and of the optimizer's state, change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from daskxml.core.arrays import Array
from daskxml.core.fields import Checked, bounded
from daskxml.models.batch import BatchSegment
from daskxml.models.network.spec import ModelSpec
from daskxml.optim import Optimizer

if TYPE_CHECKING:
    from daskxml.models.network.hash_tables import LabelTables

_BUCKET_LABELS = 16  # mean labels of a bucket for the default number of hash functions
MAX_BITS = 20  # of a key: a table has up to a million buckets
WINNER_BITS = 3  # of a key, for each winner among 8 places


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Checked):
    """Which labels a batch is trained on; evaluation always uses all of them.

    Attributes
    ----------
    method
        ``none``: all labels. ``random``: one sample for all rows of a batch, drawn uniformly.
        ``simhash`` and ``dwta``: a sample for each row, of labels whose weights are near its last
        hidden layer, by hash tables, as in SLIDE; that is slower for the same number of labels, and
        ranks them no better (``benchmarks/results/slide.md``).
    active
        Labels of a sample, the rows' own included; up to 1 a share of all labels. The rows' own
        labels are always in the sample.
    random
        The least share of the labels beside a row's own that is drawn uniformly where hash tables
        name the others; 1: all of them.
    k
        Hash functions in the key of a table: bits for ``simhash``, winners of 8 places for
        ``dwta``; 0 derives it from the number of labels.
    l
        Hash tables.
    rebuild_every
        Rows until the first rebuild of the tables.
    rebuild_growth
        Factor on the rows until the next rebuild.

    Raises
    ------
    ConfigError
        If a number is out of its range, or a key would have more than 20 bits.

    Examples
    --------
    >>> config = SamplingConfig(method="simhash", active=0.01)
    >>> config.labels_of(200_000), config.functions(200_000)
    (2000, 13)
    """

    method: Literal["none", "simhash", "dwta", "random"] = "none"
    active: float = bounded(0.02, above=0)
    random: float = bounded(0.5, low=0, high=1)
    k: int = bounded(0, low=0, high=MAX_BITS)
    l: int = bounded(16, low=1, high=1000)  # noqa: E741 (the paper's name)
    rebuild_every: int = bounded(12_800, low=1)
    rebuild_growth: float = bounded(1.2, low=1, high=100)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.active > 1 and self.active != int(self.active):
            raise self.refusal("active", "must be a share up to 1, or a whole number of labels")
        if self.method == "dwta" and self.k * WINNER_BITS > MAX_BITS:
            most = f"must be at most {MAX_BITS // WINNER_BITS} for 'dwta', whose hash functions "
            raise self.refusal("k", f"{most}have {WINNER_BITS} bits each")

    @property
    def is_on(self) -> bool:
        """Whether training uses a sample of the labels."""
        return self.method != "none"

    @property
    def hashes(self) -> bool:
        """Whether there are hash tables."""
        return self.method in ("simhash", "dwta")

    def labels_of(self, labels: int) -> int:
        """Return the size of a sample from so many labels."""
        wanted = self.active * labels if self.active <= 1 else self.active
        return max(1, min(labels, math.ceil(wanted)))

    def functions(self, labels: int) -> int:
        """Return the number of hash functions in a key."""
        if self.k:
            return self.k
        bits = max(1, min(MAX_BITS, math.floor(math.log2(max(2, labels / _BUCKET_LABELS)))))
        return max(1, bits // WINNER_BITS) if self.method == "dwta" else bits


ALL_LABELS = SamplingConfig()


def label_tables(config: SamplingConfig, spec: ModelSpec, seed: int) -> LabelTables | None:
    """Return the hash tables of a model's labels; None where chance alone draws samples.

    Examples
    --------
    >>> config = SamplingConfig(method="random")
    >>> label_tables(config, ModelSpec(features=3, labels=9), 0) is None
    True
    """
    if not config.hashes:
        return None
    from daskxml.models.network.hash_tables import LabelTables  # imports Numba

    return LabelTables(config, spec.labels, spec.widths[-2], seed)


@dataclass(frozen=True, slots=True)
class LabelSample:
    """The labels that one batch is trained on.

    Attributes
    ----------
    ids
        ``(count,)`` int32, each once; valid until the next sample.
    targets
        The whole batch, with its labels as positions in ``ids``.
    """

    ids: Array
    targets: BatchSegment

    @property
    def pairs(self) -> int:
        """How many logits a step computes."""
        return int(self.targets.rows.shape[0]) * int(self.ids.shape[0])


class SampleUpdates:
    """Updates of a small layer whose label ``i`` is ``ids[i]`` of the whole one."""

    def __init__(self, updates: Optimizer, ids: Array) -> None:
        self._updates, self._ids = updates, ids

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """Apply the gradient of some labels of the sample."""
        self._updates.subset(name, self._ids[rows], grad, lr)

    def product(
        self, name: str, rows: slice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> None:
        """Apply a gradient that is a product."""
        if scale != 1.0:
            raise NotImplementedError("gradients of sampled labels are never scaled")
        self._updates.subset_product(name, self._ids[rows], left, right, lr)


OutputUpdates = Optimizer | SampleUpdates  # receives the gradients of an output layer
