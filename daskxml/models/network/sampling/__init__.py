"""An output layer that is trained on a sample of the labels.

Hash tables over its weights find them, after SLIDE (Chen et al., "SLIDE: In Defense of Smart
Algorithms over Hardware Acceleration for Large-Scale Deep Learning Systems", MLSys 2020), or
chance alone.
"""

from __future__ import annotations

from daskxml.models.network.sampling.config import ALL_LABELS, SamplingConfig
from daskxml.models.network.sampling.hash_tables import LabelTables
from daskxml.models.network.sampling.outputs import RowSampledOutput, SampledOutput
from daskxml.models.network.sampling.source import LabelSource
from daskxml.models.network.spec import ModelSpec

__all__ = [
    "ALL_LABELS", "LabelSource", "LabelTables", "RowSampledOutput", "SampledOutput",
    "SamplingConfig", "label_source",
]  # fmt: skip


def label_source(config: SamplingConfig, spec: ModelSpec, seed: int) -> LabelSource | None:
    """Return where a model's samples come from; None where chance alone draws them.

    Examples
    --------
    >>> config = SamplingConfig(method="random")
    >>> label_source(config, ModelSpec(features=3, labels=9), 0) is None
    True
    """
    if not config.hashes:
        return None
    return LabelTables(config, spec.labels, spec.widths[-2], seed)
