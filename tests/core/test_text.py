"""Text from outside: what is shown does nothing to a terminal, and JSON fails in one way."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.core.text import number_of, one_line, parse_json, printable, quoted


@given(st.text())
def test_what_is_shown_is_printable_and_keeps_what_was(text):
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()  # no lone surrogate
    if text.isprintable():
        assert shown == text


@given(st.text() | st.integers() | st.binary())
def test_what_is_told_of_a_value_is_short_and_printable(value):
    assert len(quoted(value)) <= 42
    assert quoted(value).isprintable()
    line = one_line(f"{value} {value!r} " * 100)
    assert len(line) <= 2_010
    assert line.isprintable()


def test_a_number_of_any_length_is_told():
    assert quoted(10**5_000) == "a number of thousands of digits"


@pytest.mark.parametrize("text", ["1_0", "\u0663", "\uff13", "0x10", "", "1 0", "one"])
def test_what_is_no_number(text):
    with pytest.raises(ValueError, match=r"number|float"):
        number_of(text)


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
