"""Batches that a worker's memory holds: parts of those that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from daskxml.data.rows import slice_rows
from daskxml.ops import Kernels
from daskxml.optim import GradientBuffer
from daskxml.training.holdings import Fetched, Holdings
from daskxml.training.ledger import Span
from daskxml.training.pool import part_of
from daskxml.types import Segment

Batch = Sequence[Span]


@dataclass(frozen=True, slots=True)
class Share:
    """A batch, or a part of one, with its learning rate.

    Attributes
    ----------
    batch, lr
        Rows, and the rate before the schedule.
    fetched
        The rows of those spans that are not held here.
    ends
        It is the last part of a batch, or all of it.

    Examples
    --------
    >>> parts = Share([Span(0, 0, 0, 5)], 1.0).cut(2)
    >>> [(part.rows, part.lr) for part in parts]
    [(1, 0.2), (2, 0.4), (2, 0.4)]
    """

    batch: Batch
    lr: float
    fetched: Fetched = field(default_factory=dict)
    ends: bool = True

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(span.rows for span in self.batch)

    def cut(self, most_rows: int) -> list[Share]:
        """Return near-equal parts of at most so many rows; rates in proportion to their rows."""
        parts = -(-self.rows // most_rows)
        if parts <= 1:
            return [self]
        cut = [part_of(self.batch, part, parts) for part in range(parts)]
        fetched = cut_fetched([self.batch], self.fetched, parts)
        shares = [Share(part, self.lr, fetched, ends=False) for part in cut]
        shares = [replace(s, lr=self.lr * s.rows / self.rows) for s in shares]
        return [*shares[:-1], replace(shares[-1], ends=self.ends)]


class Ahead:
    """The rows of the next batch, on their way to the device while another is worked on."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._sent: tuple[Share, list[Segment]] | None = None

    def send(self, share: Share) -> None:
        """Send a batch's rows; where there is no room for them yet, nothing is sent."""
        with suppress(MemoryError):
            self._sent = share, self._holdings.send(share.batch, share.fetched)

    def take(self, share: Share) -> list[Segment]:
        """Return a batch's rows, for the work that is queued next."""
        if self._sent is None or self._sent[0] is not share:
            self.drop()
            return self._holdings.batch(share.batch, share.fetched)
        segments, self._sent = self._sent[1], None
        self._holdings.settle()
        return segments

    def drop(self) -> None:
        """Forget what was sent."""
        self._sent = None


class MeanGradient:
    """The mean gradient over a batch, of the means over its parts.

    Parameters
    ----------
    buffer
        What parts are added to; it is cleared.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> buffer = GradientBuffer(kernels, 1, lambda flat: {"b": flat})
    >>> mean = MeanGradient(buffer, kernels)
    >>> for rows, gradient in ((1, 6.0), (2, 3.0)):
    ...     mean.make_room(rows)
    ...     buffer.flat += gradient
    >>> mean.finish()
    >>> buffer.flat
    array([4.], dtype=float32)
    """

    def __init__(self, buffer: GradientBuffer, kernels: Kernels) -> None:
        self._buffer, self._kernels = buffer, kernels
        self._rows = self._unit = 0
        buffer.clear()

    def make_room(self, rows: int) -> None:
        """Scale what is there, so that the mean over a part of so many rows can be added."""
        if self._rows:
            self._scale(self._unit / rows)
        self._rows, self._unit = self._rows + rows, rows

    def finish(self) -> None:
        """Make it the mean over all parts."""
        if self._rows != self._unit:
            self._scale(self._unit / self._rows)

    def _scale(self, factor: float) -> None:
        self._kernels.scale(self._buffer.flat, self._buffer.flat, factor)


def cut_fetched(batches: Sequence[Batch], fetched: Fetched, parts: int) -> Fetched:
    """Return the fetched rows by the spans of the batches' parts, each cut into so many."""
    if not fetched:
        return fetched
    found = {}
    for batch in batches:
        sources = [span for span in batch if span in fetched]
        for piece in (piece for i in range(parts) for piece in part_of(batch, i, parts)):
            for span in sources:
                if span[:2] == piece[:2] and span.start <= piece.start < span.stop:
                    first = piece.start - span.start
                    found[piece] = slice_rows(fetched[span], first, first + piece.rows)
    return found
