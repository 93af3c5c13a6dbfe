"""A sampled output layer: which labels a batch, or each row, sees, by hash tables over weights.

After SLIDE (Chen et al., "SLIDE: In Defense of Smart Algorithms over Hardware Acceleration for
Large-Scale Deep Learning Systems", MLSys 2020).
"""

from daskxml.model.sampling.config import ALL_LABELS, SamplingConfig
from daskxml.model.sampling.layer import SampledOutput
from daskxml.model.sampling.row_layer import RowSampledOutput
from daskxml.model.sampling.tables import LabelTables, label_tables

__all__ = [
    "ALL_LABELS", "LabelTables", "RowSampledOutput", "SampledOutput", "SamplingConfig",
    "label_tables",
]  # fmt: skip
