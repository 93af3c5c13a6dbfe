"""Entries of a trace: numbers that a history may hold, and no others."""

import pytest

from daskxml.session.trace import LARGEST_INTEGER, plain_entry, read_entry
from daskxml.strategies.protocol import BatchLimited


@pytest.mark.parametrize("rows", [LARGEST_INTEGER, -LARGEST_INTEGER])
def test_integers_of_64_bits_are_read(rows):
    event = BatchLimited("a", rows)
    assert read_entry(plain_entry(event, ())).event == event
    with pytest.raises(ValueError, match=r"BatchLimited\.rows"):
        read_entry(plain_entry(BatchLimited("a", 2 * rows), ()))
