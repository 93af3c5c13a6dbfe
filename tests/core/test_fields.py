"""Sizes in bytes as text; ranges of fields are tested with the sections of a run file."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.errors import ConfigError
from daskxml.core.fields import parse_size, size_text


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**62))
def test_a_size_written_as_text_is_read_back(count):
    assert parse_size(str(size_text(count))) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e3", "5 parsecs", "1.2.3"])
def test_text_that_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)
