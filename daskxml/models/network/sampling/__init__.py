"""Training the output layer on a sample of the labels: settings; the other modules do it.

Hash tables over its weights find them, after SLIDE (Chen et al., "SLIDE: In Defense of Smart
Algorithms over Hardware Acceleration for Large-Scale Deep Learning Systems", MLSys 2020), or
chance alone.
"""

from __future__ import annotations

from daskxml.models.network.sampling.config import ALL_LABELS, SamplingConfig

__all__ = ["ALL_LABELS", "SamplingConfig"]
