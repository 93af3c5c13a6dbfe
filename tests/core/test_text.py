"""Text from outside: what is shown does nothing to a terminal, and JSON fails in one way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.core.text import parse_json, printable


@given(st.text())
def test_what_is_shown_is_printable_and_keeps_what_was(text):
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()  # no lone surrogate
    if text.isprintable():
        assert shown == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner), max_leaves=10,
)  # fmt: skip


@given(JSON)
def test_json_is_read_as_it_was_written(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "9" * 5_000, '"\\ud800"', '{"\\udfff": 1}', b"\xff\xfe\x00"],
    ids=["empty", "cut", "nested", "digits", "surrogate", "key", "bytes"],
)
def test_any_defect_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\S"):
        parse_json(text)
