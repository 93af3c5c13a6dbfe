"""Which rows are leased to which worker: every row of every epoch is merged once.

Rows come in *streams*: one stream over all rows where the data is replicated, one for each shard
where it is not. In every epoch a stream is walked in a fresh seeded order, so a *span* (epoch,
stream, start, stop) names rows without listing them. A mega-batch that ends inside an epoch leaves
the remainder to the next one; no row is dropped. What a lost worker had leased since the last
merge goes back, and is leased again first; where its work is not lost with it (a shared model),
only the leases that it had not done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Places ``start`` to ``stop`` of a stream's seeded order in an epoch."""

    epoch: int
    stream: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def cut_batches(spans: Iterable[Span], batch_rows: int) -> tuple[tuple[Span, ...], ...]:
    """Cut spans into batches of ``batch_rows`` rows; only the last may be smaller.

    >>> cut_batches([Span(0, 0, 90, 100), Span(1, 0, 0, 25)], 20)
    ((Span(epoch=0, stream=0, start=90, stop=100), Span(epoch=1, stream=0, start=0, stop=10)),
     (Span(epoch=1, stream=0, start=10, stop=25),))
    """
    batches: list[tuple[Span, ...]] = []
    batch: list[Span] = []
    room = batch_rows
    for span in spans:
        while span.rows:
            taken, span = _split(span, room)
            batch.append(taken)
            room -= taken.rows
            if room == 0:
                batches.append(tuple(batch))
                batch, room = [], batch_rows
    return (*batches, tuple(batch)) if batch else tuple(batches)


def _split(span: Span, rows: int) -> tuple[Span, Span]:
    middle = min(span.start + rows, span.stop)
    return span._replace(stop=middle), span._replace(start=middle)


@dataclass
class Ledger:
    """The rows of a run, from the first epoch on.

    Attributes
    ----------
    stream_rows
        Rows of each stream; they never change during a run.
    epoch
        The epoch that is being leased, from 0.
    cursors
        How far each stream is leased in this epoch.
    returned
        Spans of lost workers, to be leased first.
    held
        Spans of each worker since the last merge, one list per lease.
    """

    stream_rows: tuple[int, ...]
    epoch: int = 0
    cursors: list[int] = field(default_factory=list)
    returned: list[Span] = field(default_factory=list)
    held: dict[str, list[list[Span]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cursors = self.cursors or [0] * len(self.stream_rows)

    def take(self, worker: str, rows: int, preferred: Collection[int] = ()) -> list[Span]:
        """Lease exactly ``rows`` rows to ``worker``, from ``preferred`` streams where possible."""
        spans: list[Span] = []
        while rows:
            span = self._next_span(rows, preferred)
            spans.append(span)
            rows -= span.rows
        self.held.setdefault(worker, []).append(spans)
        return spans

    def give_back(self, worker: str) -> int:
        """Take back all that a lost worker held; return how many rows."""
        return self.take_back(self.held.pop(worker, []))

    def take_back(self, leases: Iterable[list[Span]]) -> int:
        """Take back leases that are not held any more; return how many rows."""
        spans = [span for lease in leases for span in lease]
        self.returned.extend(spans)
        return sum(span.rows for span in spans)

    def give_back_lease(self, worker: str, lease: list[Span]) -> int:
        """Take back one lease, as `take` returned it; return how many rows."""
        leases = self.held[worker]
        leases.remove(lease)  # no two are equal: no row is held twice
        if not leases:
            del self.held[worker]
        return self.take_back([lease])

    def settle(self, late: Collection[str] = ()) -> dict[str, list[list[Span]]]:
        """Close the mega-batch: return the spans of each worker that is not late."""
        settled = {name: leases for name, leases in self.held.items() if name not in late}
        self.held = {name: leases for name, leases in self.held.items() if name in late}
        return settled

    @property
    def held_rows(self) -> int:
        """Rows that are leased and not merged."""
        return sum(span.rows for leases in self.held.values() for lease in leases for span in lease)

    def _next_span(self, rows: int, preferred: Collection[int]) -> Span:
        if self.returned:
            taken, rest = _split(self.returned.pop(0), rows)
            if rest.rows:
                self.returned.insert(0, rest)
            return taken
        stream = self._next_stream(preferred)
        start = self.cursors[stream]
        stop = min(start + rows, self.stream_rows[stream])
        self.cursors[stream] = stop
        return Span(self.epoch, stream, start, stop)

    def _next_stream(self, preferred: Collection[int]) -> int:
        """A preferred stream with rows left, else the one with the most left."""
        left = [
            total - cursor for total, cursor in zip(self.stream_rows, self.cursors, strict=True)
        ]
        if not any(left):
            self.epoch += 1
            self.cursors = [0] * len(self.stream_rows)
            left = list(self.stream_rows)
        own = [stream for stream in _rotated(preferred, self.epoch) if left[stream]]
        return own[0] if own else left.index(max(left))

    def plain(self) -> dict[str, Any]:
        """Return the ledger between mega-batches as JSON values; late workers' rows go back."""
        held = [span for leases in self.held.values() for lease in leases for span in lease]
        return {
            "stream_rows": list(self.stream_rows),
            "epoch": self.epoch,
            "cursors": list(self.cursors),
            "returned": [list(span) for span in (*self.returned, *held)],
        }

    @classmethod
    def restore(cls, plain: dict[str, Any]) -> Ledger:
        """Return the ledger that ``plain`` was made from."""
        returned = [Span(*span) for span in plain["returned"]]
        return cls(tuple(plain["stream_rows"]), plain["epoch"], list(plain["cursors"]), returned)


def _rotated(streams: Collection[int], epoch: int) -> Sequence[int]:
    """Another first stream in every epoch."""
    ordered = sorted(streams)
    first = epoch % len(ordered) if ordered else 0
    return ordered[first:] + ordered[:first]
