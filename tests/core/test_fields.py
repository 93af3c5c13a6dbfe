"""Sizes in bytes as text, numbers of another type; ranges are tested with a run file's sections."""

import dataclasses
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.errors import ConfigError
from daskxml.core.fields import Checked, bounded, parse_size, size_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oven(Checked):
    """A section of settings."""

    shelves: int = bounded(2, low=1)
    minutes: float | Literal["auto"] = bounded("auto", above=0, words=("auto",))
    heats: tuple[int, ...] = bounded((200,), low=50)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"shelves": True}, "shelves = True: must be a whole number, at least 1"),
        ({"shelves": 2.5}, "shelves = 2.5: must be a whole number, at least 1"),
        ({"shelves": None}, "shelves = None: must be a whole number, at least 1"),
        ({"minutes": True}, "minutes = True: must be a number, above 0, or 'auto'"),
        ({"minutes": [1]}, r"minutes = \[1\]: must be a number, above 0, or 'auto'"),
        ({"shelves": (1, 2)}, r"shelves = \[1, 2\]: must be a whole number, at least 1"),
        ({"minutes": ()}, r"minutes = \[\]: must be a number, above 0, or 'auto'"),
        ({"heats": (200, False)}, "heats = .200, False.: must be a whole number, at least 50"),
    ],
)
def test_what_is_no_number_of_the_field_is_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Oven(**values)


def test_a_number_of_the_field_is_taken() -> None:
    assert Oven(shelves=3, minutes=5, heats=(50, 60)).minutes == 5
    assert Oven(minutes=0.5).minutes == 0.5


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**62))
def test_a_size_written_as_text_is_read_back(count):
    assert parse_size(str(size_text(count))) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e3", "5 parsecs", "1.2.3"])
def test_text_that_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)
