"""What counts as a change: false alarms, changes that are found, and the tables of both."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest

from daskxml.cli.bench.figures import collect, summarize
from daskxml.cli.bench.regression import BLIND, FLOOR, compare, metric_spec, pooled_noise
from daskxml.cli.bench.tables import csv_text, markdown

ROWS = [(f"run-{number}", "demo", "2", "cluster") for number in range(6)]


def spec_of(names, quantity):
    return metric_spec(quantity, names[-1])


def table(rng, *, spread=0.02, slower=0.0, worse=0.0, seeds=3):
    """Values of six lines around levels that differ from line to line."""
    return {
        names: {
            "train s": list(10 * (k + 1) * np.exp(slower + spread * rng.normal(size=seeds))),
            "P@1": list(0.4 + 0.05 * k - worse + spread / 5 * rng.normal(size=seeds)),
        }
        for k, names in enumerate(ROWS)
    }


def share_of_tables(found, verdict):
    return np.mean([any(change.verdict == verdict for change in changes) for changes in found])


def false_alarms(spread, seeds):
    """Return the share of 300 pairs of tables without a change in which something is worse."""
    rng = np.random.default_rng(0)
    pairs = [[table(rng, spread=spread, seeds=seeds) for _ in range(2)] for _ in range(300)]
    return share_of_tables([compare(*pair, spec_of) for pair in pairs], "worse")


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.005, 0.05])
def test_chance_alone_is_rarely_called_worse(spread):
    found = [false_alarms(spread, seeds) for seeds in (2, 3, 5)]
    assert max(found) <= 0.08
    assert 0.005 <= np.mean(found) <= 0.05


def test_times_that_are_20_percent_longer_are_found_with_three_seeds():
    rng = np.random.default_rng(4)
    found = [
        change.verdict == "worse"
        for _ in range(100)
        for change in compare(
            table(rng, spread=0.05), table(rng, spread=0.05, slower=math.log(1.2)), spec_of
        )
        if change.quantity == "train s"
    ]
    assert 0.85 <= np.mean(found) <= 0.95


def test_what_is_beyond_the_noise_is_found_with_its_direction():
    rng = np.random.default_rng(1)
    before, now = table(rng), table(rng, slower=0.2, worse=0.05)
    changes = compare(before, now, spec_of)
    assert len(changes) == 12
    assert {change.verdict for change in changes} == {"worse"}
    times = [change for change in changes if change.is_ratio]
    assert all(change.difference == pytest.approx(math.expm1(0.2), abs=0.08) for change in times)
    assert {change.verdict for change in compare(now, before, spec_of)} == {"better"}


def test_a_small_change_is_hidden_by_large_noise_and_found_in_small():
    rng = np.random.default_rng(2)

    def found(spread):
        now = table(rng, spread=spread, slower=0.05)
        changes = compare(table(rng, spread=spread), now, spec_of)
        return sum(c.verdict == "worse" and c.quantity == "train s" for c in changes)

    assert found(0.005) == 6
    assert found(0.1) == 0


def test_equal_values_are_the_same_and_hairs_are_not_split():
    lines = {ROWS[0]: {"train s": [1.0, 1.0], "P@1": [0.5, 0.5]}}
    hair = {ROWS[0]: {"train s": [1.02, 1.02], "P@1": [0.499, 0.499]}}
    more = {ROWS[0]: {"train s": [1.04, 1.04], "P@1": [0.497, 0.497]}}
    assert {change.verdict for change in compare(lines, lines, spec_of)} == {"same"}
    assert {change.verdict for change in compare(lines, hair, spec_of)} == {"same"}
    assert {change.verdict for change in compare(lines, more, spec_of)} == {"worse"}
    assert FLOOR == {"share": 0.002, "ratio": 0.03}


def test_a_line_that_scatters_more_than_the_others_is_judged_by_its_own_scatter():
    quiet = {names: {"train s": [10.0, 10.01, 9.99]} for names in ROWS[1:]}
    wild = {ROWS[0]: {"train s": [8.0, 10.0, 12.5]}}
    now = {**quiet, ROWS[0]: {"train s": [12.6, 13.0, 9.0]}}
    verdicts = {c.names: c.verdict for c in compare({**quiet, **wild}, now, spec_of)}
    assert set(verdicts.values()) == {"same"}


def test_without_repeats_only_wide_differences_are_told():
    def verdicts(now):
        [change] = compare({ROWS[0]: {"train s": [10.0]}}, {ROWS[0]: {"train s": [now]}}, spec_of)
        assert change.is_blind
        return change.verdict

    assert verdicts(11.0) == "same"
    assert verdicts(12.0) == "worse"
    assert BLIND["ratio"] == 0.15


def test_what_is_not_on_both_sides_or_not_judged_is_not_compared():
    before = {ROWS[0]: {"P@1": [0.5], "idle %": [3.0]}}
    now = {ROWS[0]: {"P@3": [0.4], "idle %": [50.0]}, ROWS[1]: {"P@1": [0.1]}}
    assert compare(before, now, spec_of) == []


@pytest.mark.parametrize(
    ("quantity", "larger", "by_clock"),
    [("P@1", True, False), ("PSnDCG@5", True, False), ("rows/s", True, True),
     ("s to P@1 0.6", False, True), ("in all s", False, True), ("memory MiB", False, False),
     ("training loss", False, False)],
)  # fmt: skip
def test_directions(quantity, larger, by_clock):
    spec = metric_spec(quantity, "cluster")
    assert (spec.larger_is_better, spec.by_clock) == (larger, by_clock)


def test_pooled_noise_is_the_deviation_around_each_mean():
    groups = np.random.default_rng(3).normal([[0.0], [50.0], [-7.0]], 2.0, size=(3, 400))
    assert pooled_noise(groups).deviation == pytest.approx(2.0, rel=0.05)
    assert pooled_noise(groups).degrees == 3 * 399


def cell(repeat, p1, status="done", **more):
    return {
        "names": ROWS[0], "title": f"cell {repeat}", "status": status, "reason": "why",
        "figures": {"": {"P@1": p1, "nDCG@5": 0.25}} if status == "done" else {}, **more,
    }  # fmt: skip


ENVIRONMENT = {
    "cpu": "Z80", "cores": 1, "memory_gib": 0.1, "os": "CP/M", "python": "3.11", "daskxml": "0.1",
    "packages": {}, "peers": {}, "commit": "abc", "code": "x", "date": "1976-07-01T00:00",
}  # fmt: skip


def test_the_tables_have_medians_ranges_failures_and_changes():
    cells = [cell(0, 0.5), cell(1, 0.75), cell(2, 0.6), cell(3, 0.0, status="over time")]
    script = {"names": ["parser"], "status": "done", "figures": {"ours": {"MB/s": 812.0}}}
    found = {
        "suite": "mine", "title": "a test", "environment": ENVIRONMENT, "open": 2,
        "cells": [*cells, script],
    }  # fmt: skip
    changes = compare({ROWS[0]: {"P@1": [0.9, 0.91]}}, collect(found["cells"]), spec_of)
    text = markdown(found, changes, ["1 figure compared."])
    assert "| run-0 | demo | 2       | cluster  | 0.6 (0.5 to 0.75) |     3 |" in text
    assert "nDCG@5" not in text
    assert "## parser" in text
    assert "- cell 3: over time: why" in text
    assert "- 2 cells have not been begun" in text
    assert "| run-0, demo, 2, cluster: P@1 |" in text
    rows = list(csv.DictReader(io.StringIO(csv_text(found, changes))))
    assert [row["quantity"] for row in rows] == ["P@1", "nDCG@5", "MB/s"]
    assert (rows[0]["median"], rows[0]["cells"], rows[0]["verdict"]) == ("0.6", "3", "worse")
    assert (rows[2]["run"], rows[2]["data"], rows[2]["verdict"]) == ("parser", "ours", "")


def test_the_median_of_an_even_number_of_values():
    assert summarize([4.0, 1.0, 3.0, 2.0]).median == 2.5
