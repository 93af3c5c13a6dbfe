"""Ranking metrics of extreme classification, P@k, nDCG@k, PSP@k, PSnDCG@k, recall@k; and losses."""

from daskxml.metrics.losses import LossSum
from daskxml.metrics.propensity import propensities
from daskxml.metrics.ranking import metric_sums
from daskxml.metrics.sums import MetricSums
from daskxml.metrics.top_k import top_k_dense

__all__ = ["LossSum", "MetricSums", "metric_sums", "propensities", "top_k_dense"]
