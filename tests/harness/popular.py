"""A kind of model of tests alone: it ranks labels by how frequent they are, and is fitted in tasks.

Registered as `registered` does, it is all that a new kind takes: no room of the package knows it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar
from unittest import mock

import numpy as np

from daskxml.models import kinds
from daskxml.models.fitting import Fitter, Plan
from daskxml.models.mix.kind import Mix
from daskxml.models.protocol import FittedKind, Limit, Spec


@dataclass(frozen=True, kw_only=True)
class PopularSpec(Spec):
    """The same labels for every row.

    ``smoothing`` is added to the rows of each label.
    """

    kind: ClassVar[str] = "popular"
    smoothing: float = 0.0


@dataclass(frozen=True)
class LabelRange:
    """Labels whose rows are counted together."""

    start: int
    stop: int

    @property
    def work(self) -> float:
        return float(self.stop - self.start)

    @property
    def key(self) -> tuple[int, ...]:
        return (self.start,)


class PopularFitter(Fitter):
    """Counts rows."""

    def plan(self, part, counts, order, slots, on_gpus):
        bounds = np.linspace(0, counts.size, 2 * slots + 1).astype(int).tolist()
        pieces = [LabelRange(*span) for span in pairwise(bounds)]
        return Plan(tuple(pieces), "rows are counted")

    def fit(self, part, counts, order, number, piece):
        ids = part.labels.indices
        found = np.bincount(ids, minlength=counts.size)[piece.start : piece.stop]
        return ((found + self.settings.spec.smoothing) / self.settings.rows).astype(np.float32)

    def put_together(self, order, plan, pieces):
        return {"shares": np.concatenate(pieces)}


class PopularRanker:
    """Ranks by shares of rows, ``(labels,)``."""

    def __init__(self, shares: Any) -> None:
        self.shares = shares

    def top_k(self, segments, k):
        best = np.argsort(-self.shares, kind="stable")[:k].astype(np.int32)
        rows = sum(segment.rows.size for segment in segments)
        return np.tile(best, (rows, 1)), np.tile(self.shares[best], (rows, 1))

    def probabilities(self, segments):
        return np.tile(self.shares, (sum(segment.rows.size for segment in segments), 1))


class Popular(FittedKind[PopularSpec]):
    """Ranks labels by how frequent they are."""

    title, member, Spec = "popular labels", "table", PopularSpec

    def problem(self, spec, arrays):
        return None if arrays.keys() == {"table0.shares"} else "shares are all that it has"

    def ranker(self, spec, arrays, kernels):
        return PopularRanker(arrays["table0.shares"])

    def describe(self, spec, arrays):
        return "popular"

    def smaller(self, spec, arrays, bits, drop):
        return spec, {name: np.where(each > drop, each, 0) for name, each in arrays.items()}

    def explain(self, spec, arrays, row, label):
        return np.zeros(row.nonzeros)

    def limits(self, config):
        yield Limit("training.epochs", (1,), "must be 1: rows are counted once")
        yield from super().limits(config)

    def work(self, row: Mapping[str, Any]) -> str:
        return f"{row['rows']:,} rows"

    def fitter(self, settings, slot):
        return PopularFitter(settings, slot)


@contextmanager
def registered() -> Iterator[None]:
    """Register the kind: what its one line in `daskxml.models.kinds` does."""
    every = {**kinds.KINDS, "popular": Popular()}
    with (
        mock.patch.dict(kinds.TRAINED, popular=every["popular"]),
        mock.patch.dict(kinds.KINDS, popular=every["popular"], mix=Mix(every)),
    ):
        yield
