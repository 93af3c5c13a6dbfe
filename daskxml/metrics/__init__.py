"""Ranking metrics of extreme classification, P@k, nDCG@k, PSP@k, PSnDCG@k, recall@k; and losses."""

from daskxml.metrics.ranking import metric_sums, propensities
from daskxml.metrics.sums import LossSum, MetricSums

__all__ = ["LossSum", "MetricSums", "metric_sums", "propensities"]
