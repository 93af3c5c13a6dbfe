"""What is a number and not a chart: series with one point, and values that do not change."""

from __future__ import annotations

import numpy as np
import pytest

from daskxml.observe.dashboard.folding import folded

NAN = np.nan
MANY = [str(number) for number in range(6)]


@pytest.mark.parametrize(
    ("values", "names", "words"),
    [
        ([[64.0]], ["a"], "64"),  # one point
        ([[64.0, 64.0, 64.0]], ["a"], "64"),
        ([[64.0, 63.0]], ["a"], None),
        ([[64.0, 64.0], [32.0, 32.0]], ["a", "b"], "64 (a), 32 (b)"),
        ([[NAN, 64.0], [32.0, NAN]], ["a", "b"], "64 (a), 32 (b)"),  # joined, and lost
        ([[64.0, 64.0], [32.0, 31.0]], ["a", "b"], None),
        ([[0.0, 0.0]], ["a"], ""),  # it does not apply to this run
        ([[NAN, NAN]], ["a"], ""),
        ([[]], ["a"], ""),
        ([[float(number)] for number in range(6)], MANY, "0 to 5"),
    ],
)
def test_what_does_not_change_is_told_in_words(values, names, words):
    found = folded({"x": np.array(values, ndmin=2)}, names, {})
    assert found == ({} if words is None else {"x": words})


def test_numbers_are_written_as_their_chart_has_them():
    assert folded({"x": np.array([[0.5]])}, ["a"], {"x": "{:.0%}".format}) == {"x": "50%"}


def test_no_workers_are_nothing():
    assert folded({"x": np.zeros((0, 0))}, [], {}) == {"x": ""}
