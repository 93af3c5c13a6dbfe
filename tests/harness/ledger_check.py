"""Every row that a history lists, and the proof that none is counted twice or left out."""

from __future__ import annotations

from harness.records import check_record


def rows_of(history, total_rows):
    """Return every merged row as its place in the endless sequence of epochs."""
    return [
        (epoch * total_rows + place if not stream else (epoch, stream, place))
        for row in history
        for worker in row["workers"].values()
        for lease in worker["leases"]
        for epoch, stream, start, stop in lease
        for place in range(start, stop)
    ]


def check_ledger(history, total_rows):
    """Each mega-batch's rows follow the last one's, each once, and the counts agree.

    What was decided is recomputed, too.
    """
    before = 0
    for row in history:
        counted = sorted(rows_of([row], total_rows))
        assert counted == list(range(before, row["rows"])), f"mega-batch {row['megabatch']}"
        for worker in row["workers"].values():
            assert worker["rows"] == sum(s[3] - s[2] for lease in worker["leases"] for s in lease)
        before = row["rows"]
    check_record(history)
