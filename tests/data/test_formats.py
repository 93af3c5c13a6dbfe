"""Tables and matrices in files: the same rows as from text, however cut, and what is refused."""

import gzip
import json
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.formats import (
    FORMATS,
    PartTable,
    declared,
    plan_files,
    read_block,
    read_documents,
    read_frame,
)
from daskxml.data.inspection import inspect_file
from daskxml.data.parse import Dialect, parse_bytes
from daskxml.data.reading import plan_source
from daskxml.data.rows import concatenate, find_bad_row
from daskxml.data.settings import DataSection
from daskxml.data.side_files import ids_by_name
from daskxml.data.tables import Parts, columns_to_read
from harness.rows_here import read_here
from harness.table_files import WRITERS, Rows, as_text

VALUES = st.floats(-1e3, 1e3, width=32)
IDS = st.lists(st.integers(0, 30), max_size=5, unique=True)
ROW = IDS.flatmap(
    lambda ids: st.tuples(
        st.lists(st.integers(0, 9), max_size=4),
        st.just(ids),
        st.lists(VALUES, min_size=len(ids), max_size=len(ids)),
    )
)
FIXED: Rows = [([0, 2], [1, 4], [0.5, 2.0]), ([], [3], [-1.0]), ([1], [], [])]


def read(path: str | Path, dialect: Dialect, block_bytes: int = 1 << 20) -> Partition:
    blocks = plan_files([str(path)], block_bytes)
    return concatenate([read_block(block, dialect) for block in blocks])


def assert_same(found: Partition, expected: Partition) -> None:
    for kind in ("features", "labels"):
        one, other = getattr(found, kind), getattr(expected, kind)
        np.testing.assert_array_equal(one.indptr, other.indptr)
        np.testing.assert_array_equal(one.indices, other.indices)
        assert one.columns == other.columns
        assert (one.indptr.dtype, one.indices.dtype) == (np.int64, np.int32)
    np.testing.assert_array_equal(found.features.data, expected.features.data)
    assert found.features.data.dtype == np.float32


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=15, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=12), block_bytes=st.sampled_from([40, 300, 1 << 20]))
def test_every_format_gives_the_rows_of_the_text(tmp_path_factory, name, rows, block_bytes) -> None:
    path = tmp_path_factory.mktemp("rows") / name
    WRITERS[name](path, rows)
    dialect = Dialect(features=31, labels=10)
    expected = parse_bytes(as_text(rows).encode(), dialect, blank_rows=True).partition
    assert_same(read(path, dialect, block_bytes), expected)


@pytest.mark.parametrize(
    "name", ["lists.parquet", "file.arrow", "lists.jsonl", "texts.csv", "X.npz"]
)
def test_large_files_are_cut(tmp_path, name) -> None:
    WRITERS[name](tmp_path / name, FIXED * 20)
    assert len(plan_files([str(tmp_path / name)], 200)) > 2
    assert len(plan_files([str(tmp_path / name)], 1 << 20)) == 1


@pytest.mark.parametrize("name", ["lists.parquet", "lists.jsonl", "texts.csv", "X.npz"])
def test_urls_globs_and_many_files(tmp_path, name) -> None:
    WRITERS[name](tmp_path / name, FIXED)
    stored = fsspec.filesystem("memory")
    for file in tmp_path.iterdir():
        stored.pipe(f"/formats/{name}/{file.name}", file.read_bytes())
    expected = read(tmp_path / name, Dialect())
    pattern = name.replace(name[0], "[" + name[0] + "]", 1)
    assert_same(read(f"memory://formats/{name}/{pattern}", Dialect()), expected)
    (tmp_path / "more").mkdir()
    WRITERS[name](tmp_path / "more" / name, FIXED)
    both = (str(tmp_path / name), str(tmp_path / "more" / name))
    blocks, facts = read_here(DataSection(train=both))
    assert facts.rows == 6
    assert_same(blocks[0], expected)


@pytest.mark.parametrize("name", ["lists.jsonl.gz", "texts.csv.gz"])
def test_gzipped_lines(tmp_path, name) -> None:
    plain = tmp_path / name.removesuffix(".gz")
    WRITERS[plain.name](plain, FIXED)
    (tmp_path / name).write_bytes(gzip.compress(plain.read_bytes()))
    assert_same(read(tmp_path / name, Dialect()), read(plain, Dialect()))


@pytest.mark.parametrize("name", WRITERS)
def test_inspect_counts_what_is_there(tmp_path, name) -> None:
    WRITERS[name](tmp_path / name, FIXED)
    found = inspect_file(str(tmp_path / name))
    assert (found.rows, found.labels, found.seen_features) == (3, 3, 3)
    assert found.feature_base == (0 if "X" in name else 1)  # npz declares its columns
    assert "1 rows have no feature" in found.problems


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.startswith("objects")])
def test_ids_that_repeat_are_merged_as_in_text(tmp_path, name) -> None:
    rows: Rows = [([2, 0, 2], [4, 1, 4, 4], [0.5, 2.0, 0.1, 0.3]), ([1], [3, 3], [1.0, 2.0])]
    WRITERS[name](tmp_path / name, rows)
    dialect = Dialect(features=9, labels=3)
    assert_same(
        read(tmp_path / name, dialect), parse_bytes(as_text(rows).encode(), dialect).partition
    )
    problems = inspect_file(str(tmp_path / name)).problems
    assert "3 features repeat an id of their row; their values are summed" in problems
    assert "1 labels repeat an id of their row; they count once" in problems


def test_texts_of_other_arrow_types(tmp_path) -> None:
    kinds = (pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.large_string())
    for number, kind in enumerate(kinds):
        columns = {
            "labels": pa.array(["0,2", "1"]).cast(kind),
            "features": pa.array(["1:1", "2:0"]),
        }
        table, path = pa.table(columns), tmp_path / f"{number}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        assert read(path, Dialect()).labels.indices.tolist() == [0, 2, 1]


def test_dense_tables_have_a_feature_in_each_column(tmp_path) -> None:
    columns = {"labels": ["0,2", "1"], "x": [0.0, 1.0], "y": [3, 0], "z": [True, False]}
    pq.write_table(pa.table(columns), tmp_path / "dense.parquet")
    (tmp_path / "dense.csv").write_text('labels,x,y,z\n"0,2",0,3,1\n1,1,0,0\n')
    for name in ("dense.parquet", "dense.csv"):
        blocks, facts = read_here(DataSection(train=(str(tmp_path / name),)))
        assert (facts.features, facts.labels, facts.feature_base, facts.shift) == (3, 3, 0, 0)
        assert blocks[0].features.indices.tolist() == [1, 2, 0]
        assert blocks[0].features.data.tolist() == [3, 1, 1]
        assert inspect_file(str(tmp_path / name)).features == 3


def dense(columns: list[str]) -> dict[str, list[float]]:
    values = {"labels": [1, 0], "x": [0.5, 0.0], "y": [3.0, 0.25], "z": [0.0, 7.0]}
    return {name: values.get(name, [1.0, 2.0]) for name in columns}


def write_dense(path: Path, columns: list[str]) -> str:
    table = pa.table(dense(columns))
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        rows = zip(*dense(columns).values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, r)) for r in rows)]))
    else:
        path.write_text("\n".join(map(json.dumps, table.to_pylist())))
    return str(path)


@pytest.mark.parametrize("name", ["b.parquet", "b.csv", "b.jsonl"])
def test_dense_tables_are_matched_by_the_names_of_their_columns(tmp_path, name) -> None:
    first = write_dense(tmp_path / "a.csv", ["labels", "x", "y", "z"])
    other = write_dense(tmp_path / name, ["z", "x", "labels", "y"])
    (one, two), facts = read_here(DataSection(train=(first, other)))
    assert facts.columns == ("x", "y", "z")
    assert_same(one, two)
    assert inspect_file([first, other]).features == 3
    assert_same(read(other, Dialect(feature_names=facts.columns, features=3, labels=2)), two)
    for columns, problem in {
        ("labels", "", "y", "z"): "a column without a name; it has 'labels', '', 'y', 'z'; name it",
        ("labels", "x", "z"): "no column 'y', which is a feature; it has 'labels', 'x', 'z'",
        ("labels", "x", "y", "z", "w"): "column 'w' is none of the 3 features; leave it out",
    }.items():
        other = write_dense(tmp_path / name, [*columns])
        with pytest.raises(InputError, match=problem):
            read_here(DataSection(train=(first, other)))
    frame = pa.table(dense(["z", "x", "labels", "y"]))
    known = columns_to_read(frame.column_names, Dialect(feature_names=facts.columns))
    found = read_frame(frame, known, Dialect(features=3, labels=2)).partition
    assert_same(found, two)


NAMED = {"labels": [["red", "dark blue"], ["green"]], "indices": [["sun", "sea"], []]}
NAMED_CSV = 'labels,features\n"red,dark blue",sun:0.5 sea:2\ngreen,\n'
NAMED_JSON = {"labels": ["red", "dark blue"], "features": {"sun": 0.5, "sea": 2}}


@pytest.fixture
def named(tmp_path) -> Path:
    (tmp_path / "labels.txt").write_text("green\nblack\nred\ndark blue\n")
    (tmp_path / "features.txt").write_text("moon\nsea\nwind\nsun\n")
    pq.write_table(pa.table({**NAMED, "values": [[0.5, 2.0], []]}), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text(NAMED_CSV)
    rows = [NAMED_JSON, {"labels": ["green"], "features": {}}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.jsonl"])
def test_names_become_ids_that_count_from_zero(named, name) -> None:
    source = DataSection(
        train=(str(named / name),),
        features=4,
        labels=4,
        feature_names=str(named / "features.txt"),
        label_names=str(named / "labels.txt"),
        label_base=1,
    )
    [rows], facts = read_here(source)
    assert (facts.feature_base, facts.shift) == (0, 0)
    assert rows.features.indices.tolist() == [1, 3]
    assert rows.features.data.tolist() == [2, 0.5]
    assert rows.labels.indices.tolist() == [2, 3, 0]
    paths = {"feature_names": source.feature_names, "label_names": source.label_names}
    found = inspect_file(str(named / name), **paths)
    assert (found.features, found.labels, found.feature_base) == (4, 4, 0)


def test_names_need_a_list_of_names_that_has_them(named) -> None:
    for name in ("rows.parquet", "rows.jsonl"):
        with pytest.raises(InputError, match=r"'(red|sun)' is a name: give data\.\w+_names"):
            read(named / name, Dialect())
    for name in ("rows.parquet", "rows.csv", "rows.jsonl"):
        with pytest.raises(InputError, match="'dark blue' is none of the 2 names; add it"):
            read(named / name, Dialect(label_names=("red", "green"), feature_names=("sun", "sea")))
    assert ids_by_name(("red", "green")) == {"red": 0, "green": 1}


def parquet(**columns) -> pa.Table:
    usual = {"labels": [[0], [1]], "indices": [[1], [2]], "values": [[0.5], [1.0]]}
    return pa.table({name: it for name, it in {**usual, **columns}.items() if it is not None})


BAD_TABLES = {
    "a row is null": (parquet(labels=[[0], None]), "row 1: 'labels' is null; fill it, or drop"),
    "an item is null": (parquet(indices=[[1], [None]]), "row 1: 'indices' holds a null; fill it"),
    "no labels": (parquet(labels=None), r"no column 'labels'; it has 'indices', 'values'; rename"),
    "no features": (
        parquet(indices=None, values=None, title=["a", "b"]),
        "row 0: 'title' holds 'a', no number; expected 'indices' or 'features'",
    ),
    "only labels": (
        parquet(indices=None, values=None),
        "no column 'indices' or 'features'; it has",
    ),
    "lengths": (parquet(values=[[0.5], []]), "row 1: 1 'indices' but 0 'values'; give one value"),
    "fractions": (
        parquet(indices=[[1.0], [2.5]]),
        "row 1: feature 2.5 is not an integer; give ids",
    ),
    "negative": (parquet(indices=[[1], [-2]]), "row 1: feature id -2 is negative; renumber"),
    "range": (parquet(indices=[[1], [99]]), "row 1: feature id 99 in '99' is out of range: 9 feat"),
    "label range": (
        parquet(labels=[[0], [7]]),
        "row 1: label id 7 in '7' is out of range: 3 label",
    ),
    "NaN": (parquet(values=[[0.5], [float("nan")]]), "row 1: value nan is NaN, infinite or does"),
    "overflow": (parquet(values=[[0.5], [1e99]]), "row 1: value 1e\\+99 is NaN, infinite or does"),
    "values as texts": (
        parquet(values=[["x"], ["y"]]),
        "row 0: 'values' holds 'x', no number; give num",
    ),
    "no lists": (parquet(indices=[1, 2]), "row 0: 'indices' must hold a list in every row"),
    "dates": (
        parquet(labels=pa.array([1, 2], pa.timestamp("ms"))),
        r"row 0: column 'labels' is of type timestamp\[ms\]: give numbers, texts, or lists",
    ),
    "malformed text": (
        parquet(indices=None, values=None, features=["1:1", "2=1"]),
        "row 1: malformed token '2=1'; expected feature:value",
    ),
    "two kinds": (parquet(features=["1:1", "2:1"]), "it has both 'features' and 'indices'"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_are_refused_with_their_row(tmp_path, case) -> None:
    table, words = BAD_TABLES[case]
    path = tmp_path / "bad.parquet"
    pq.write_table(table, path, row_group_size=1)
    with pytest.raises(InputError, match=words) as caught:
        read(path, Dialect(features=9, labels=3), block_bytes=1)
    assert caught.value.path == str(path)
    assert "\n" not in str(caught.value)


GOOD_JSON = '{"labels": [0], "indices": [1], "values": [2]}\n'
BAD_LINES = {
    "a.jsonl": {
        '{"labels": [0], "ind': "a.jsonl:2: malformed JSON .*the line may be cut: write",
        "[1]": "a.jsonl:2: not an object; expected",
        '{"labels": [0, "a"], "indices": [1], "values": [2]}': "2: 'labels' is .0, 'a'. .Could",
        '{"labels": [true], "indices": [1], "values": [2]}': "2: .*(is .True|True is no)",
        '{"labels": [0], "indices": [1], "values": [NaN]}': "2: value nan is NaN, infinite or does",
        '{"labels": [1180591620717411303424], "indices": [], "values": []}': "number is too large",
    },
    "a.csv": {
        "0": "a.csv:3: 1 fields, but there are 2 columns; fix the row",
        '"0,1:1': "a.csv:3: 1 fields, but there are 2 columns; fix the row or its quotes",
        '"0,1:1\n1",1:1': "a.csv:3: 1 fields, .*or its quotes",
        '0,"1:1\n1,1:1': "a.csv:3: a quoted text does not end on its line",
        "x,1:1": "a.csv:3: malformed labels 'x'; expected label,label",
        "0:1,1:1": "a.csv:3: 'labels' is '0:1': expected label,label",
        "0,1:1#": "a.csv:3: a '#' or a line break in '1:1#'; remove it",
        "0,1:x": "a.csv:3: malformed value in '1:x'; expected feature:number",
    },
}


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [(name, line, words) for name, lines in BAD_LINES.items() for line, words in lines.items()],
)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_bad_lines_are_refused_with_their_number(tmp_path, name, line, words, block_bytes) -> None:
    good = GOOD_JSON if name == "a.jsonl" else "labels,features\n0,1:1\n"
    (tmp_path / name).write_text(good + line + "\n")
    with pytest.raises(InputError, match=words):
        read(tmp_path / name, Dialect(features=9, labels=5), block_bytes)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"labels": [0], "values": [1]}', "'indices' is missing, but other rows have it"),
        ('{"labels": [0], "indices": [1], "values": null}', "'values' is null, but other rows"),
        ('{"labels": null, "indices": [1], "values": [2]}', "'labels' is null, but other rows"),
        ('{"labels": [0], "indices": [1], "sample_weight": 2}', "'sample_weight' is not in the fi"),
        (
            '{"labels": "0", "indices": [1], "values": [2]}',
            "'labels' is '0' .cannot mix",
        ),
    ],
)
def test_json_rows_are_alike(tmp_path, line, words) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD_JSON + line + "\n")
    with pytest.raises(InputError, match=f"a.jsonl:2: {words}"):
        read(tmp_path / "a.jsonl", Dialect())


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_without_values_all_are_one(tmp_path, block_bytes) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD_JSON + '{"labels": [0], "indices": [4, 3]}\n')
    found = read(tmp_path / "a.jsonl", Dialect(), block_bytes)
    assert found.features.data.tolist() == [2, 1, 1]
    pq.write_table(pa.table({"labels": [3], "indices": [[4, 3]]}), tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet", Dialect())
    assert (found.features.data.tolist(), found.labels.indices.tolist()) == ([1, 1], [3])


def test_columns_that_cannot_be_are_named(tmp_path) -> None:
    for text, words in {
        b"labels,x\n0,1\n1,?\n": "a.csv:3: 'x' holds '\\?', no number",
        b"labels,indices,values\n0,1,1\n1,2,?\n": "a.csv:3: 'values' holds '\\?', no number",
        b"labels,x,x\n0,1,1\n": "a.csv:1: two columns have the same name",
        b"tags,x\n0,1\n": "a.csv:1: no column 'labels'; it has 'tags', 'x'; rename or add it",
        b"labels,x\n\xff,1\n": "is no UTF-8 text",
        b"a," * (5 << 20) + b"b\n0\n": r"a\.csv.*: a line of more than 4,194,304 bytes",
        b'{"labels": [0], "values": [1, 2]}': r"a.jsonl:1: .values. holds lists, no numbers; exp",
    }.items():
        path = tmp_path / ("a.jsonl" if text.startswith(b"{") else "a.csv")
        path.write_bytes(text)
        with pytest.raises(InputError, match=words):
            read(path, Dialect())


@pytest.mark.parametrize("name", ["lists.parquet", "file.arrow", "stream.arrow", "X.npz"])
@pytest.mark.parametrize("keep", [0.5, 0.97])
def test_cut_files_are_refused(tmp_path, name, keep) -> None:
    path = tmp_path / name
    WRITERS[name](path, FIXED * 20)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(InputError, match="not a whole") as caught:
        read(path, Dialect())
    assert caught.value.path == str(path)


def test_damaged_npz_arrays_are_refused(tmp_path) -> None:
    WRITERS["X.npz"](tmp_path / "X.npz", FIXED)
    good = (tmp_path / "X.npz").read_bytes()
    indptr = np.array([0, 2, 3, 3]).tobytes()
    assert good.count(indptr) == 1
    for wrong, words in (
        ([0, 9, 3, 3], "its indptr is not ascending"),
        ([0, 1 << 62, -(1 << 62) - 1, 3], "its indptr is not ascending"),  # differences overflow
        *(([0, 2, 3, last], "its arrays end early") for last in (1 << 20, 1 << 60, (1 << 63) - 1)),
    ):
        (tmp_path / "X.npz").write_bytes(good.replace(indptr, np.array(wrong).tobytes()))
        with pytest.raises(InputError, match=words):
            read(tmp_path / "X.npz", Dialect())


@pytest.mark.parametrize(
    "header",
    [b"{b'shape':0, 'descr': 0}", b"{'descr': ',', 'fortran_order': False, 'shape': (2,)}", b","],
)
def test_npz_arrays_whose_headers_numpy_cannot_read_are_refused(tmp_path, header) -> None:
    WRITERS["X.npz"](tmp_path / "X.npz", FIXED)
    before, name, rest = (tmp_path / "X.npz").read_bytes().partition(b"shape.npy")
    old = rest[rest.index(b"{") : rest.index(b"}") + 1]
    wrong = rest.replace(old, header.ljust(len(old)), 1)
    (tmp_path / "X.npz").write_bytes(before + name + wrong)
    with pytest.raises(InputError, match="not a whole file of a sparse matrix"):
        read(tmp_path / "X.npz", Dialect())


NO_ROWS: dict[str, np.ndarray] = {
    "format": np.array(3), "format ": np.array([b"csr", b"csc"]), "format  ": np.array(b"\xff"),
    "format   ": np.array(b"\x1b[31m" + 5_000 * b"c"), "shape": np.array(["3", "5"]),
    "shape ": np.array([3, 5], "M8[s]"), "shape  ": np.array(3), "shape   ": np.array([3.0, 5.0]),
    "shape    ": np.array([[3, 5]]), "indptr": np.array(0), "indptr ": np.array([[0], [2], [3]]),
    "indptr  ": np.array(["0", "2", "3", "3"]), "indices": np.array([[1], [4], [3]]),
    "indices ": np.array(["1", "4", "3"]), "indices  ": np.array([1, 4, 3], "M8[s]"),
    "data": np.array(1.0), "data ": np.ones((3, 1)), "data  ": np.array(["1", "2", "3"]),
    "data   ": np.array([1, 2, 3], "m8[s]"), "data    ": np.zeros(3, [("a", "i4")]),
    "data     ": np.array([1, 1j, 2]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["X", "Y"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("part", NO_ROWS)
def test_npz_arrays_of_other_kinds_are_refused(tmp_path, part, save, kind) -> None:
    WRITERS["X.npz"](tmp_path / "X.npz", FIXED)
    with np.load(tmp_path / f"{kind}.npz") as held:
        arrays = dict(held) | {part.strip(): NO_ROWS[part]}
    save(tmp_path / f"{kind}.npz", **arrays)
    with pytest.raises(InputError, match=rf"{kind}\.npz: ") as caught:
        read(tmp_path / "X.npz", Dialect())
    assert len(caught.value.message) < 500
    assert caught.value.message.isprintable()


def test_a_small_npz_does_not_become_gigabytes(tmp_path) -> None:
    count = 1 << 24
    zeros = {"indices": np.zeros(count, np.int32), "data": np.zeros(count, np.float32)}
    WRITERS["X.npz"](tmp_path / "X.npz", FIXED)
    with np.load(tmp_path / "X.npz") as held:
        arrays = dict(held) | {"indptr": np.array([0, 0, 0, count])} | zeros
    np.savez_compressed(tmp_path / "X.npz", **arrays)
    del arrays, zeros
    with pytest.raises(InputError, match=r"bytes would become 134,.*; save it with"):
        read(tmp_path / "X.npz", Dialect())


@pytest.mark.parametrize("number", ["1_0", "\u0663", "\uff13", 5_000 * "9", 4_000 * "9"])
@pytest.mark.parametrize("line", [
    '{"labels": ["%s"], "indices": [1]}', '{"labels": [0], "indices": ["%s"]}',
    '{"labels": [0], "features": {"%s": 1}}', '{"labels": [0], "features": {"1": "%s"}}',
    '{"labels": [0], "features": {"1": %s}}', '{"labels": [%s], "indices": [1]}',
    "labels,features\n%s,1:1", "labels,features\n0,%s:1", "labels,features\n0,1:%s",
    "labels,indices,values\n0,%s,1", "labels,indices,values\n0,1,%s", "labels,red\n0,%s",
    "labels,sample_weight,red\n0,%s,1", "%s 1:1", "0 %s:1", "0 1:%s", "9 9 9\n%s 1:1",
])  # fmt: skip
def test_numbers_are_the_same_in_every_format(tmp_path, line, number) -> None:
    kind = "jsonl" if line[0] == "{" else "csv" if "," in line else "txt"
    path = tmp_path / f"a.{kind}"
    path.write_text(line % number + "\n", encoding="utf-8")

    def planned() -> None:
        plan = plan_source(DataSection(train=[str(path)]))
        read_block(plan.blocks[0], plan.dialect)

    with pytest.raises(InputError, match=rf"a\.{kind}:[12]: ") as caught:
        planned()
    assert len(caught.value.message) < 500
    assert "\n" not in caught.value.message


def test_long_names_are_not_told_whole(tmp_path) -> None:
    path = tmp_path / "a.csv"
    for text in ("%s\n0\n", "labels,%s\n0,x\n", "labels,features\n%s,1:1\n"):
        path.write_text(text % ("n" * 5_000))
        with pytest.raises(InputError) as caught:
            read(path, Dialect())
        assert len(caught.value.message) < 500


@pytest.mark.parametrize("name", ["lists.parquet", "file.arrow", "stream.arrow", "X.npz"])
def test_an_enormous_number_anywhere_is_read_or_refused(tmp_path, name) -> None:
    WRITERS[name](tmp_path / name, FIXED)
    good, refused = (tmp_path / name).read_bytes(), 0
    number = (1 << 62).to_bytes(8, "little")
    for at in range(0, len(good) - 8, 8):
        (tmp_path / name).write_bytes(good[:at] + number + good[at + 8 :])
        try:
            read(tmp_path / name, Dialect())
        except InputError:
            refused += 1
    assert refused > 0


def test_npz_values_are_not_read_from_what_follows_them_in_the_file(tmp_path) -> None:
    WRITERS["X.npz"](tmp_path / "X.npz", FIXED)
    with np.load(tmp_path / "X.npz") as stored:
        np.savez(tmp_path / "X.npz", **{**stored, "data": stored["data"][:-1]})
    with pytest.raises(InputError, match="its arrays end early"):
        read(tmp_path / "X.npz", Dialect())


def test_npz_files_that_do_not_fit(tmp_path) -> None:
    matrix = sp.csr_array(np.eye(3))
    sp.save_npz(tmp_path / "rows.npz", matrix)
    with pytest.raises(InputError, match=r"no labels beside it: name both, as X\.npz"):
        read(tmp_path / "rows.npz", Dialect())
    sp.save_npz(tmp_path / "X.npz", matrix)
    with pytest.raises(InputError, match=r"no labels beside it: save them as .*Y\.npz"):
        read(tmp_path / "X.npz", Dialect())
    assert read(tmp_path / "X.npz", Dialect(needs_labels=False)).labels.nonzeros == 0
    sp.save_npz(tmp_path / "Y.npz", matrix[:2])
    with pytest.raises(InputError, match=r"Y\.npz: 2 rows of labels, but .*X\.npz has 3"):
        declared(str(tmp_path / "X.npz"))
    sp.save_npz(tmp_path / "X.npz", matrix.tocsc())
    with pytest.raises(InputError, match=r"a matrix in 'csc' form; save X\.tocsr\(\)"):
        declared(str(tmp_path / "X.npz"))


def test_explicit_zeros_are_no_labels(tmp_path) -> None:
    sp.save_npz(tmp_path / "X.npz", sp.csr_array(np.eye(2)))
    labels = sp.csr_array(([1.0, 0.0, 1.0], [0, 1, 1], [0, 2, 3]), shape=(2, 2))
    sp.save_npz(tmp_path / "Y.npz", labels)
    assert read(tmp_path / "X.npz", Dialect()).labels.indices.tolist() == [0, 1]


def test_formats_are_not_mixed_where_ids_count_differently(tmp_path) -> None:
    WRITERS["X.npz"](tmp_path / "X.npz", FIXED)
    WRITERS["lists.jsonl"](tmp_path / "a.jsonl", FIXED)
    paths = (str(tmp_path / "X.npz"), str(tmp_path / "a.jsonl"))
    with pytest.raises(InputError, match=r"a.jsonl: does not declare its columns, as .*X\.npz"):
        read_here(DataSection(train=paths))


def test_a_format_is_known_by_its_setting_too(tmp_path) -> None:
    WRITERS["lists.jsonl"](tmp_path / "rows.dat", FIXED)
    [rows], _ = read_here(DataSection(train=(str(tmp_path / "rows.dat"),), format="jsonl"))
    assert rows.rows == 3
    with pytest.raises(InputError, match=r"rows.dat:1: malformed"):
        read_here(DataSection(train=(str(tmp_path / "rows.dat"),)))


def test_the_first_bad_row_is_found_wherever_it_is() -> None:
    def make(rows: range) -> int:
        if len(rows) > bad:
            raise InputError(f"bad within {len(rows)}")
        return len(rows)

    for count in (1, 2, 7, 64):
        for bad in range(count):
            with pytest.raises(InputError, match=f"{bad}: bad within {bad + 1}$"):
                find_bad_row(range(count), make, lambda row, text: InputError(f"{row}: {text}"))
        bad = count
        assert find_bad_row(range(count), make, lambda row, text: InputError(text)) == count


def test_frames_of_other_kinds_go_through_arrow() -> None:
    table = pa.table({"labels": [[0], [1]], "indices": [[1], [2]], "extra": ["a", "b"]})
    rows = read_frame(table, ["labels", "indices"], Dialect(features=3, labels=2)).partition
    assert rows.features.indices.tolist() == [1, 2]
    with pytest.raises(InputError, match="row 1: feature id 2 in '2' is out of range"):
        read_frame(table, ["labels", "indices"], Dialect(features=2, labels=2))


def test_dense_json_lines_and_lists_of_ids_as_texts(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"y": 2, "x": 0, "labels": [1]}\n{"labels": [0], "x": 1.5, "y": 0}\n'
    )
    [rows], facts = read_here(DataSection(train=(str(tmp_path / "a.jsonl"),)))
    assert (facts.features, facts.feature_base, facts.shift) == (2, 0, 0)
    assert rows.features.indices.tolist() == [0, 1]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"x": 1, "y": 2, "z": 3, "labels": [1]}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:3: 'z' is not in the first row: give all rows"):
        read_here(DataSection(train=(str(tmp_path / "a.jsonl"),)))
    pq.write_table(pa.table({"labels": ["0"], "indices": ["4 2"]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", Dialect()).features.indices.tolist() == [2, 4]


def test_a_new_reader_is_a_function_and_a_line(tmp_path, monkeypatch) -> None:
    def open_mine(file, path) -> Parts:
        table = pa.table(json.load(file))

        def batches(start, stop, names):
            return iter(table.select(names).to_batches()[start:stop])

        return Parts(table.column_names, [1.0], batches)

    kinds = {"mine": PartTable("my own", (".mine",), open_mine)}
    monkeypatch.setattr("daskxml.data.formats.FORMATS", {**FORMATS, **kinds})
    (tmp_path / "a.mine").write_text('{"labels": [[0], [1]], "indices": [[1], [9]]}')
    assert read(tmp_path / "a.mine", Dialect()).features.indices.tolist() == [1, 9]
    with pytest.raises(InputError, match=r"a\.mine: row 1: feature id 9 in '9' is out of range"):
        read(tmp_path / "a.mine", Dialect(features=9))


@pytest.mark.parametrize("name", ["lists.parquet", "lists.jsonl", "X.npz", "rows.txt"])
def test_rows_of_features_are_no_documents(tmp_path, name) -> None:
    path = tmp_path / name
    WRITERS[name](path, FIXED) if name in WRITERS else path.write_text("1 4 3\n0,2 1:0.5\n")
    [block] = plan_files([str(path)], 1 << 20)
    with pytest.raises(InputError, match=f"{name}: holds rows of features, not documents"):
        read_documents(block, Dialect(text_column="text", needs_labels=False))
