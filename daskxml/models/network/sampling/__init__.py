"""Training the output layer on a sample of the labels: settings; the other modules do it.

Hash tables over its weights find them, after SLIDE (Chen et al., "SLIDE: In Defense of Smart
Algorithms over Hardware Acceleration for Large-Scale Deep Learning Systems", MLSys 2020), or
chance alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daskxml.models.network.sampling.config import ALL_LABELS, SamplingConfig
from daskxml.models.network.spec import ModelSpec

if TYPE_CHECKING:
    from daskxml.models.network.sampling.hash_tables import LabelTables

__all__ = ["ALL_LABELS", "SamplingConfig", "label_tables"]


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
    from daskxml.models.network.sampling.hash_tables import LabelTables  # imports Numba

    return LabelTables(config, spec.labels, spec.widths[-2], seed)
