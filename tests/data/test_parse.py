"""The fast parser equals its naive twin, on right and on wrong text."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.errors import InputError
from daskxml.data.blocks import Block
from daskxml.data.formats import plan_files, read_block
from daskxml.data.parse import (
    Dialect,
    detect_feature_base,
    parse_bytes,
    parse_pieces,
)
from harness.naive_parser import assert_agree, assert_same, parse_bytes_naive

SPACES = st.sampled_from([" ", "  ", "\t", " \t ", " \r "])
ENDS = st.sampled_from(["", " ", "\t", "\r", " # a comment 1:2", "#"])
IDS = st.one_of(st.integers(0, 30), st.integers(0, 10**7), st.integers(0, 2**31 - 2))
SCRAPS = b"|:|,|-|#|\n| |e|.|\0|x|nan|inf|2147483647|99999999999|1e99|qid:1|\xff".split(b"|")
VALUES = st.one_of(
    st.sampled_from(["0", "1", "-0", "+.5", "5.", "1e3", "1E-3", "00012.50", ".25e+2", "1e-50"]),
    st.floats(-1e6, 1e6, width=32).map(repr),
    st.floats(-1e30, 1e30, allow_subnormal=False).map(lambda value: f"{value:.15g}"),
    st.decimals(-999, 999, places=6).map(str),
)


@st.composite
def spelt_rows(draw: st.DrawFn, *, values: st.SearchStrategy[str] = VALUES) -> str:
    """A line in some legal spelling."""
    zeros = draw(st.sampled_from(["", "0", "0000000000"]))
    labels = ",".join(zeros + str(label) for label in draw(st.lists(IDS, max_size=4)))
    features = draw(st.lists(st.tuples(SPACES, IDS, values), max_size=6))
    text = "".join(f"{space}{zeros}{column}:{value}" for space, column, value in features)
    return labels + text + draw(ENDS)


TEXTS = st.tuples(st.lists(spelt_rows(), max_size=8), st.booleans()).map(
    lambda parts: ("\n".join(parts[0]) + "\n" * parts[1]).encode()
)
DIALECTS = st.builds(
    Dialect,
    features=st.sampled_from([None, 31, 10**7]),
    labels=st.sampled_from([None, 31]),
    feature_base=st.integers(0, 1),
    label_base=st.integers(0, 1),
)


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.booleans())
def test_legal_text_parses_as_the_naive_twin_parses_it(text: bytes, blank_rows: bool) -> None:
    expected = parse_bytes_naive(text, Dialect(), blank_rows=blank_rows)
    assert_same(parse_bytes(text, Dialect(), blank_rows=blank_rows).partition, expected)


@settings(max_examples=120, deadline=None)
@given(TEXTS, DIALECTS, st.booleans(), st.data())
def test_corrupted_text_fails_as_the_naive_twin_fails(
    text: bytes, dialect: Dialect, blank_rows: bool, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 3))
        scrap = data.draw(st.sampled_from(SCRAPS))
        text = text[:at] + scrap + text[at + cut :]
    assert_agree(text, dialect, blank_rows)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_are_judged_alike(text: bytes, blank_rows: bool) -> None:
    assert_agree(text, Dialect(), blank_rows)


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, width=32).map(float), st.integers(1, 25))
def test_long_spellings_are_within_one_unit_in_the_last_place(value: float, digits: int) -> None:
    spelling = f"{value:.{digits}e}"
    with np.errstate(over="ignore"):
        expected = np.float32(float(spelling))
    if not np.isfinite(expected):
        return
    found = parse_bytes(f" 0:{spelling}".encode()).partition.features.data[0]
    with np.errstate(over="ignore"):
        below, above = np.nextafter(expected, np.float32([-np.inf, np.inf]))
    assert below <= found <= above


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**15 - 1), st.integers(0, 15))
def test_fifteen_digits_are_exact(digits: int, places: int) -> None:
    text = str(digits).zfill(places + 1)
    spelling = f"{text[: len(text) - places]}.{text[len(text) - places :]}"
    found = parse_bytes(f" 0:{spelling}".encode()).partition.features.data[0]
    assert found == np.float32(float(spelling))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"1 2", "malformed token '2'; expected feature:value"),
        (b"1 2:", "has no value; the line seems cut"),
        (b"1 2:x", "malformed value in '2:x'"),
        (b"1 2:1:3", "malformed value in '2:1:3'"),
        (b"1 2:NaN", "NaN or infinite"),
        (b"1 2:-inf", "NaN or infinite"),
        (b"1 2:1e400", "NaN or infinite"),
        (b"1 2:1e39", "does not fit float32"),
        (b"1 -2:1", "is negative"),
        (b"1 10:1", "feature id 10 in '10:1' is out of range: 10 features counted from 0"),
        (b"5 1:1", "label id 5 in '5' is out of range: 5 labels counted from 0"),
        (b"1.0 1:1", "label '1.0' is not a non-negative integer"),
        (b"-1 1:1", "renumber them from 0 (for instance -1 and +1 to 0 and 1)"),
        (b"+1 1:1", "is not a non-negative integer"),
        (b"1, 2 1:1", "malformed labels '1,'"),
        (b"1 qid:3 1:1", "remove the qid field"),
        (b"1 2:3\x00", "not text"),
        (b"x" * 99, "malformed labels 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"),
    ],
)
def test_each_fault_names_its_line_and_what_to_do(line: bytes, words: str) -> None:
    text = b"0 1:1\n\n" + line + b"\n"
    with pytest.raises(InputError) as caught:
        parse_bytes(text, Dialect(features=10, labels=5), path="a.txt")
    assert words in caught.value.problem
    assert str(caught.value).startswith("a.txt:3: ")
    assert_agree(text, Dialect(features=10, labels=5), blank_rows=False)


def test_ids_above_int32_are_refused() -> None:
    for text in (b"0 2147483647:1\n", b"2147483647 0:1\n", b"0 123456789012345678901:1\n"):
        with pytest.raises(InputError, match="larger than 2147483646"):
            parse_bytes(text)


def test_id_zero_in_a_one_based_file_is_refused() -> None:
    with pytest.raises(InputError, match="feature id 0 in '0:1', but the ids were taken to start"):
        parse_bytes(b"0 1:1 0:1\n", Dialect(feature_base=1))


def test_untidy_rows_are_counted_and_set_in_order() -> None:
    parsed = parse_bytes(b"3,1,3 5:1 2:2 5:0.5\n0 1:1 2:1\n")
    assert parsed.partition.features.indices.tolist() == [2, 5, 1, 2]
    assert parsed.partition.features.data.tolist() == [2, 1.5, 1, 1]
    assert parsed.partition.labels.indices.tolist() == [1, 3, 0]
    assert (parsed.unsorted_rows, parsed.merged_features, parsed.merged_labels) == (1, 1, 1)


def test_the_base_is_one_only_without_an_id_zero() -> None:
    assert [detect_feature_base(least) for least in (0, 1, 7, None)] == [0, 1, 1, 0]


ROWS = b"".join(b"%d,%d %d:0.%d\n" % (i % 7, i % 5, i % 50, i) for i in range(400))


@pytest.mark.parametrize("block_bytes", [1, 64, 10**6])
@pytest.mark.parametrize("header", [b"", b"400 50 7\r\n"])
def test_blocks_hold_every_row_once(tmp_path, header: bytes, block_bytes: int) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(header + ROWS)
    blocks = plan_files([str(path)], block_bytes)
    indices = np.concatenate([read_block(b, Dialect()).features.indices for b in blocks])
    np.testing.assert_array_equal(indices, np.arange(400) % 50)


def test_gzip_members_parse_like_the_plain_file(tmp_path) -> None:
    path = tmp_path / "rows.txt.gz"
    half = len(ROWS) // 2 + 3  # within a line
    path.write_bytes(gzip.compress(b"400 50 7\n" + ROWS[:half]) + gzip.compress(ROWS[half:]))
    [block] = plan_files([str(path)], 64)
    assert block.stop is None
    assert_same(read_block(block, Dialect()), parse_bytes_naive(ROWS, Dialect()))


def test_a_stream_in_many_pieces_joins_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("daskxml.data.blocks.TEXT_BYTES", 100)
    path = tmp_path / "rows.txt"
    block = Block(str(path), 0, None, has_header=False)
    path.write_bytes(b"0 3:1\n" + ROWS + b"1 2:")
    with pytest.raises(InputError, match=r"rows\.txt:402: "):
        read_block(block, Dialect())
    path.write_bytes(b"\xef\xbb\xbf0 3:1 2:1\n" + ROWS)
    assert_same(read_block(block, Dialect()), parse_bytes_naive(b"0 3:1 2:1\n" + ROWS, Dialect()))
    unsorted = [piece.unsorted_rows for piece in parse_pieces(block, Dialect())]
    assert len(unsorted) > 40
    assert sum(unsorted) == unsorted[0] == 1


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_line_of_a_fault_is_counted_from_the_beginning_of_the_file(tmp_path, suffix) -> None:
    path = tmp_path / ("rows.txt" + suffix)
    text = b"401 50 7\n" + ROWS + b"1 2:oops\n"
    path.write_bytes(gzip.compress(text) if suffix else text)
    *whole, last = plan_files([str(path)], 500)
    for block in whole:
        read_block(block, Dialect(features=50, labels=7))
    with pytest.raises(InputError) as caught:
        read_block(last, Dialect(features=50, labels=7))
    assert (caught.value.path, caught.value.line) == (str(path), 402)
