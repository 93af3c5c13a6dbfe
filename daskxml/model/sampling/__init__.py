"""An output layer that is trained on a sample of the labels, found by hash tables over weights.

After SLIDE (Chen et al., "SLIDE: In Defense of Smart Algorithms over Hardware Acceleration for
Large-Scale Deep Learning Systems", MLSys 2020).
"""

from daskxml.model.sampling.config import ALL_LABELS, SamplingConfig
from daskxml.model.sampling.hash_tables import LabelTables, label_tables
from daskxml.model.sampling.outputs import RowSampledOutput, SampledOutput

__all__ = [
    "ALL_LABELS", "LabelTables", "RowSampledOutput", "SampledOutput", "SamplingConfig",
    "label_tables",
]  # fmt: skip
