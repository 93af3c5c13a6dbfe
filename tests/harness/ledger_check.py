"""Every row that a history lists, and the proof that none is counted twice or left out."""

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
    """No row is counted twice, the counts agree, and none is left out unless a worker was late.

    What was decided is recomputed, too.
    """
    merged = set()
    for row in history:
        counted, name = rows_of([row], total_rows), f"mega-batch {row['megabatch']}"
        assert len(counted) == len(set(counted)), name
        assert merged.isdisjoint(counted), name
        merged.update(counted)
        assert row["rows"] == len(merged), name
        is_one_stream = not any(isinstance(place, tuple) for place in counted)
        if is_one_stream and not any("late" in each for each in history):
            assert merged == set(range(row["rows"])), name
        for worker in row["workers"].values():
            assert worker["rows"] == sum(s[3] - s[2] for lease in worker["leases"] for s in lease)
    check_record(history)
