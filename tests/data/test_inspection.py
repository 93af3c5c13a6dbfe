"""What inspect_file reports, counted by hand."""

import gzip
import json
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.core.errors import InputError
from daskxml.data.inspection import Spread, inspect_file

TEXT = b"5 6 4\n0,2 0:1 3:2\n2 1:1\n 5:1 4:1 5:1\n2\n2,2 1:1\n"


@pytest.fixture(params=["rows.txt", "rows.txt.gz"])
def path(tmp_path, request) -> str:
    file = tmp_path / request.param
    file.write_bytes(gzip.compress(TEXT) if file.suffix == ".gz" else TEXT)
    return str(file)


@pytest.mark.parametrize("block_bytes", [4, 1 << 20])
def test_counts_are_those_counted_by_hand(path: str, block_bytes: int) -> None:
    found = inspect_file(path, block_bytes=block_bytes)
    assert (found.rows, found.features, found.labels) == (5, 6, 4)
    assert (found.seen_features, found.seen_labels) == (5, 2)
    assert found.features_per_row == Spread(mean=6 / 5, median=1.0, largest=2)
    assert found.labels_per_row == Spread(mean=1.0, median=1.0, largest=2)
    assert found.sparsity == pytest.approx(1 - 6 / 30)
    assert (found.unseen_labels, found.single_labels, found.rare_labels) == (0.5, 0.25, 0.5)
    assert found.top_label_share == 4 / 5
    assert found.csr_mib == pytest.approx((2 * 8 * 6 + 8 * 6 + 4 * 5) / 2**20)
    assert found.gzipped == path.endswith(".gz")
    assert found.problems == (
        "1 of 6 feature ids are never used",
        "2 of 4 label ids are never used",
        "1 rows have no label",
        "1 rows have no feature",
        "1 rows have features that do not ascend; they are sorted when read",
        "1 features repeat an id of their row; their values are summed",
        "1 labels repeat an id of their row; they count once",
    )


def test_headers_that_disagree_with_the_rows_are_problems(tmp_path) -> None:
    (tmp_path / "a.txt").write_bytes(b"9 2 2\n0 7:1\n")
    (tmp_path / "b.txt").write_bytes(b"1 2 3\n8 1:1\n")
    problems = inspect_file(str(tmp_path / "*.txt")).problems
    assert "the headers of the files declare different counts; make them equal" in problems
    assert any(
        problem.startswith("the header declares 10 rows, but 2 were") for problem in problems
    )
    assert "feature id 7 is out of range: the header declares 2" in problems
    assert "label id 8 is out of range: the header declares 3" in problems


def test_libsvm_text_is_one_based_without_a_feature_zero(tmp_path) -> None:
    path = tmp_path / "rows.svm"
    path.write_bytes(b"0 1:1 4:1\n\n1 2:1\n")
    found = inspect_file(str(path))
    assert (found.feature_base, found.rows, found.features, found.labels) == (1, 2, 4, 2)
    assert "libSVM" in found.format
    assert found.problems == ()
    path.write_bytes(b"0 1:1 0:1\n")
    assert inspect_file(str(path)).feature_base == 0


def test_a_wild_id_costs_no_memory(tmp_path) -> None:
    path = tmp_path / "rows.svm"
    path.write_bytes(b"2147483646 2147483646:1\n")
    found = inspect_file(str(path))
    assert (found.features, found.labels) == (2**31 - 2, 2**31 - 1)


def test_lines_and_dict_say_the_same(path: str) -> None:
    found = inspect_file(path)
    lines = found.lines()
    assert any(line.split() == ["rows", "5"] for line in lines)
    assert all(f"  - {problem}" in lines for problem in found.problems)
    assert json.loads(json.dumps(asdict(found)))["rows"] == 5


def test_a_malformed_row_is_refused(tmp_path) -> None:
    path = tmp_path / "rows.svm"
    path.write_bytes(b"0 1:1\n0 1:\n")
    with pytest.raises(InputError, match=r"rows\.svm:2: "):
        inspect_file(str(path))


@given(st.lists(st.lists(st.integers(0, 50), max_size=20), max_size=6))
def test_a_spread_is_that_of_numpy(pieces: list[list[int]]) -> None:
    values = [value for piece in pieces for value in piece]
    spread = Spread.of(Counter(values))
    if values:
        assert spread.mean == pytest.approx(np.mean(values))
        assert (spread.median, spread.largest) == (np.median(values), max(values))
    else:
        assert spread == Spread(mean=0.0, median=0.0, largest=0)
