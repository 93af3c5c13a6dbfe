"""Settings of label sampling: the ``[sampling]`` section of a run file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges

_BUCKET_LABELS = 16  # mean labels of a bucket for the default number of hash functions
MAX_BITS = 20  # of a key: a table has up to a million buckets
WINNER_BITS = 3  # of a key, for each winner among 8 places


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Which labels a batch is trained on; evaluation always uses all of them.

    Attributes
    ----------
    method
        ``none``: all labels. ``simhash`` and ``dwta``: labels whose weights are near the rows' last
        hidden layer, by hash tables; ``random``: the control, uniform.
    sets
        ``batch``: one sample for all rows of a batch, by matrix products; ``row``: a sample for
        each row, as in SLIDE, which is slower for the same number of labels
        (``benchmarks/results/slide.md``).
    active
        Labels of a sample, the rows' own included; up to 1 a share of all labels. The rows' own
        labels are always in the sample.
    random
        The least share of the labels beside the rows' own that is drawn uniformly.
    weighted
        Weight each uniformly drawn label by the number of labels that it stands for, so that sums
        over labels are unbiased; False weights each by 1, as SLIDE does, which ranks labels better
        after the same time (``benchmarks/results/slide.md``).
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
    sets: Literal["batch", "row"] = "batch"
    active: float = bounded(0.02, above=0)
    random: float = bounded(0.5, low=0, high=1)
    weighted: bool = False
    k: int = bounded(0, low=0, high=MAX_BITS)
    l: int = bounded(16, low=1, high=1000)  # noqa: E741 (the paper's name)
    rebuild_every: int = bounded(12_800, low=1)
    rebuild_growth: float = bounded(1.2, low=1, high=100)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.active > 1 and self.active != int(self.active):
            raise ConfigError(
                f"active = {self.active:g}: must be a share up to 1, or a whole number of labels",
                "active",
            )
        if self.method == "dwta" and self.k * WINNER_BITS > MAX_BITS:
            raise ConfigError(
                f"k = {self.k}: must be at most {MAX_BITS // WINNER_BITS} for 'dwta', whose hash "
                f"functions have {WINNER_BITS} bits each",
                "k",
            )

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
