"""Files of a history: written, appended to and read; a damaged one is refused in one line."""

from __future__ import annotations

import pytest

from daskxml.core.errors import ModelError
from daskxml.records.run_dir import extend_history, read_history, write_history


def test_written_appended_and_read(tmp_path):
    path = tmp_path / "history.jsonl"
    rows = [{"megabatch": i, "loss": 0.1 * i, "name": "ä\u2028b\n"} for i in range(3)]
    write_history(path, rows[:1])
    for row in rows[1:]:
        extend_history(path, None, [row])
    assert read_history(path) == rows
    write_history(path, rows[:2])
    assert read_history(path) == rows[:2]
    assert [p.name for p in tmp_path.iterdir()] == ["history.jsonl"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'{"a": 1}\n{"a"', ":2: not a JSON object"),
        (b'{"a": 1}\n3\n', ":2: not a JSON object"),
        (b'{"a": 1}\n\n', ":2: not a JSON object"),
        (b"\xff\xfe\x00", ":1: not a JSON object"),
    ],
)
def test_a_damaged_history_is_refused(tmp_path, content, place):
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_history(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert "\n" not in str(caught.value)


def test_a_history_that_is_missing_or_has_no_place(tmp_path):
    path = tmp_path / "no" / "history.jsonl"
    with pytest.raises(ModelError, match="no history of a run here"):
        read_history(path)
    with pytest.raises(ModelError, match="cannot be written"):
        extend_history(path, None, [{}])
    with pytest.raises(ModelError, match="cannot be written"):
        write_history(path, [])
