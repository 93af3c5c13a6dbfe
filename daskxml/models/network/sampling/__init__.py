"""An output layer that is trained on a sample of the labels.

Hash tables over its weights find them, after SLIDE (Chen et al., "SLIDE: In Defense of Smart
Algorithms over Hardware Acceleration for Large-Scale Deep Learning Systems", MLSys 2020), or label
trees, or chance alone.
"""

from __future__ import annotations

from daskxml.kernels import Kernels
from daskxml.models.network.sampling.config import ALL_LABELS, SamplingConfig
from daskxml.models.network.sampling.hash_tables import LabelTables
from daskxml.models.network.sampling.outputs import RowSampledOutput, SampledOutput
from daskxml.models.network.sampling.source import LabelSource
from daskxml.models.network.spec import ModelSpec

__all__ = [
    "ALL_LABELS", "LabelSource", "LabelTables", "RowSampledOutput", "SampledOutput",
    "SamplingConfig", "label_source",
]  # fmt: skip


def label_source(
    config: SamplingConfig, spec: ModelSpec, seed: int, kernels: Kernels
) -> LabelSource | None:
    """Return where a model's samples come from; None where chance alone draws them.

    Raises
    ------
    ConfigError
        If the trees that are to name labels are of other rows.
    ModelError
        If there are none.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> config, kernels = SamplingConfig(method="random"), get_kernels("cpu", 1)
    >>> label_source(config, ModelSpec(features=3, labels=9), 0, kernels) is None
    True
    """
    if config.hashes:
        return LabelTables(config, spec.labels, spec.widths[-2], seed)
    if config.method != "tree":
        return None
    from daskxml.models.network.sampling.shortlists import Shortlists  # whose rows need Numba

    return Shortlists.of(config, spec, kernels)
