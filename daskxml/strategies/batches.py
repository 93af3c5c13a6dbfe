"""Rows in batches: the settings that every strategy has, and how rows are dealt out in shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from daskxml.fields import bounded, check_ranges


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """What the run file of any strategy says of its batches.

    Attributes
    ----------
    lr
        Learning rate at ``batch_max`` rows; other sizes step in proportion (linear scaling).
    batch_max
        The largest batch of a worker, in rows.
    megabatch_batches
        Rows between two merges, in batches of ``batch_max``.

    Examples
    --------
    >>> BatchConfig(batch_max=64, megabatch_batches=50).megabatch_rows
    3200
    """

    lr: float = bounded(1.0, above=0)
    batch_max: int = bounded(256, low=1)
    megabatch_batches: int = bounded(100, low=1)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def megabatch_rows(self) -> int:
        """Rows between two merges."""
        return self.megabatch_batches * self.batch_max


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide ``total`` in proportion to ``weights``, in whole numbers (largest remainders).

    Where remainders are equal, who comes first in ``weights`` gets more.

    Examples
    --------
    >>> apportion(64, {"a": 1, "b": 1, "c": 1})
    {'a': 22, 'b': 21, 'c': 21}
    >>> apportion(10, {"a": 2.0, "b": 1.0})
    {'a': 7, 'b': 3}
    """
    whole = sum(weights.values())
    parts = {name: divmod(total * weight, whole) for name, weight in weights.items()}
    shares = {name: int(quotient) for name, (quotient, _) in parts.items()}
    left = total - sum(shares.values())
    for name in sorted(parts, key=lambda n: -parts[n][1])[:left]:
        shares[name] += 1
    return shares


def deal_rows(rows: int, batch_rows: Mapping[str, int]) -> dict[str, int]:
    """Divide rows so that all make equally many batches of their own size.

    As many full batches as there are for everybody; what is left is one smaller batch for each, in
    proportion to the sizes.

    Parameters
    ----------
    rows
        How many there are.
    batch_rows
        Rows of each worker's batch, 0 or more.

    Examples
    --------
    >>> deal_rows(100, {"a": 20, "b": 10})  # three batches each, and 10 rows
    {'a': 67, 'b': 33}
    >>> deal_rows(5, {"a": 20, "b": 20})
    {'a': 3, 'b': 2}
    """
    batches, left = divmod(rows, sum(batch_rows.values()))
    pieces = apportion(left, batch_rows)
    return {name: batches * size + pieces[name] for name, size in batch_rows.items()}


def deal_batches(rows: int, batch_rows: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide rows in proportion to ``weights``, in whole batches.

    Only one batch is smaller, where ``rows`` is no multiple: it is with whoever has the most.

    Examples
    --------
    >>> deal_batches(250, 50, {"a": 3.0, "b": 2.0})
    {'a': 150, 'b': 100}
    >>> deal_batches(245, 50, {"a": 3.0, "b": 2.0})
    {'a': 145, 'b': 100}
    """
    batches = -(-rows // batch_rows)
    shares = {name: n * batch_rows for name, n in apportion(batches, weights).items()}
    shares[max(shares, key=shares.__getitem__)] -= batches * batch_rows - rows
    return shares
