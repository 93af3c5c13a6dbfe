"""The labels that trained label trees rank first for a row: its hardest negatives.

Matching by trees before a network ranks the matches is the order of XR-Transformer (Zhang et al.,
NeurIPS 2021) and LightXML (Jiang et al., AAAI 2021). Here the trees only choose what a step is
computed over; they do not change, and evaluation ranks all labels by the network alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.core.errors import ConfigError
from daskxml.data.rows import take_rows, unit_rows
from daskxml.kernels import Kernels, Lookup
from daskxml.models.batch import BatchSegment
from daskxml.models.network.sampling.config import SamplingConfig
from daskxml.models.network.sampling.source import LabelSource
from daskxml.models.network.spec import ModelSpec
from daskxml.models.store import read_model
from daskxml.models.trees.forest import Forest
from daskxml.models.trees.spec import TreeSpec

_UNKNOWN = -2  # a row whose labels are yet to be found


class Shortlists(LabelSource):
    """Labels by row, found when a row is first seen and kept for later epochs.

    Parameters
    ----------
    forest
        Ranks labels.
    count
        Labels of a row.
    scales_rows
        Whether the trees take rows of unit length.

    Examples
    --------
    `daskxml.models.network.sampling.label_source` makes one of the model that a run file names::

        found = shortlists.lookup(kernels, hidden, batch)
        of_row_3 = found.members[0, found.starts[0, 3] : found.starts[0, 4]]
    """

    def __init__(self, forest: Forest, count: int, scales_rows: bool) -> None:
        self._forest, self._count, self._scales_rows = forest, count, scales_rows
        self._rows: Csr | None = None  # whose labels these are
        self._labels: Array = np.empty((0, count), np.int32)  # -1 where there are fewer
        self._lock = threading.Lock()  # the threads of a pool share them

    @classmethod
    def of(cls, config: SamplingConfig, spec: ModelSpec, kernels: Kernels) -> Shortlists:
        """Read the trees that a run file names.

        Raises
        ------
        ConfigError
            If the model is of another kind, or of other rows.
        ModelError
            If there is none, or a damaged one.
        """
        header, arrays, _ = read_model(config.model)
        trees, found = header.spec, f"[sampling] model = {config.model!r}:"
        if not isinstance(trees, TreeSpec):
            raise ConfigError(f"{found} is no label tree; train one by `daskxml train tree`")
        if (trees.features, trees.labels) != (spec.features, spec.labels):
            raise ConfigError(
                f"{found} has {trees.features:,} features and {trees.labels:,} labels, the rows "
                f"{spec.features:,} and {spec.labels:,}; train it on the same files"
            )
        count = min(config.shortlist, spec.labels)
        return cls(Forest(trees, arrays, kernels), count, header.normalize == "l2")

    def lookup(self, kernels: Kernels, hidden: Array, batch: Sequence[BatchSegment]) -> Lookup:
        """Give each row a bucket of its own."""
        with self._lock:
            labels = np.concatenate([self._of_segment(segment) for segment in batch])
        is_one = labels >= 0
        starts = np.concatenate([[0], np.cumsum(is_one.sum(axis=1))]).astype(np.int32)
        keys = np.arange(labels.shape[0], dtype=np.int32)
        return Lookup(keys[None], starts[None], labels[is_one][None])

    def _of_segment(self, segment: BatchSegment) -> Array:
        if self._rows is not segment.x:
            self._rows = segment.x
            self._labels = np.full((segment.x.rows, self._count), _UNKNOWN, np.int32)
        unknown = segment.rows[self._labels[segment.rows, 0] == _UNKNOWN]
        if unknown.shape[0]:
            part = take_rows(Partition(segment.x, segment.y), unknown)
            if self._scales_rows:
                unit_rows(part.features)
            numbers = np.arange(part.rows)
            self._labels[unknown], _ = self._forest.top_k([Segment(part, numbers)], self._count)
        found: Array = self._labels[segment.rows]
        return found
