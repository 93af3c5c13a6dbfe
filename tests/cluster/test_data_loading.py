"""Files to shuffled partitions on a real cluster: the same rows in the same order, however cut."""

import asyncio
import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from distributed import Client

from daskxml.cluster.data_loading import ClusterTasks, _name_rows
from daskxml.config import load_run_config
from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.reading import Facts, Recipe
from daskxml.data.rows import concatenate, to_scipy
from daskxml.data.settings import DataSection
from daskxml.session.row_loading import count_labels, make_shards, parse_files
from harness.table_files import WRITERS

ROWS, FEATURES, LABELS = 97, 40, 12


def lines(base: int = 0) -> list[str]:
    """Rows that can be told apart: the value of the first feature is the row's number."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(ROWS):
        ids = np.sort(rng.choice(np.arange(1, FEATURES), rng.integers(0, 6), replace=False))
        features = [f"{base}:{number + 1}", *(f"{i + base}:0.5" for i in ids)]
        labels = sorted(rng.choice(LABELS, rng.integers(0, 3), replace=False))
        rows.append(" ".join([",".join(map(str, labels)), *features]))
    return rows


def write(path: Path, rows: list[str], header: bool = True) -> Path:
    text = "\n".join(([f"{len(rows)} {FEATURES} {LABELS}"] if header else []) + rows) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def ingested(
    client: Client, source: DataSection, parts: int, key: int | None = 7, normalize: str = "none"
) -> tuple[Partition, Facts, Any]:
    async def work() -> tuple[list[Partition], Facts, Any]:
        name = f"{np.random.default_rng().integers(2**40)}"
        tasks = ClusterTasks(client)
        parsed = await parse_files(tasks, source, name)
        facts = parsed.facts
        recipe = Recipe(
            rows=facts.rows, parts=parts, shuffle_key=key, features=facts.features,
            labels=facts.labels, shift=parsed.facts.shift, normalize=normalize,
        )  # fmt: skip
        shards = make_shards(tasks, parsed, recipe, name)
        counts = count_labels(tasks, shards, facts.labels, name)
        partitions = await client.gather(shards.parts)
        assert [part.rows for part in partitions] == list(shards.rows)
        return partitions, facts, await counts

    partitions, facts, counts = client.sync(work)
    return concatenate(partitions), facts, counts


def same(left: Partition, right: Partition) -> bool:
    pairs = [(left.features, right.features), (left.labels, right.labels)]
    return all((to_scipy(a) != to_scipy(b)).nnz == 0 for a, b in pairs)


def numbers(rows: Partition) -> list[int]:
    """Which row of the file each row is."""
    first = to_scipy(rows.features).tocsc()[:, 0].toarray().ravel()
    return [int(value) - 1 for value in first]


@pytest.mark.parametrize(("block_bytes", "parts"), [(300, 1), (10**6, 3), (1000, 20)])
def test_the_shuffle_does_not_depend_on_the_cuts(
    client: Client, tmp_path: Path, block_bytes: int, parts: int
) -> None:
    path = str(write(tmp_path / "train.txt", lines()))
    whole, _, _ = ingested(client, DataSection(train=(path,)), 1)
    rows, facts, counts = ingested(
        client, DataSection(train=(path,), block_bytes=block_bytes), parts
    )
    assert same(rows, whole)
    assert sorted(numbers(rows)) == list(range(ROWS))
    assert numbers(rows) != list(range(ROWS))
    assert (facts.rows, facts.features, facts.labels) == (ROWS, FEATURES, LABELS)
    assert list(counts) == list(to_scipy(rows.labels).sum(axis=0).A1)


def test_without_a_key_the_order_of_the_files_stays(client: Client, tmp_path: Path) -> None:
    text = lines()
    paths = [
        str(write(tmp_path / "a.txt", text[:40])),
        str(write(tmp_path / "b.txt.gz", text[40:])),
    ]
    rows, facts, _ = ingested(client, DataSection(train=tuple(paths), block_bytes=200), 4, key=None)
    assert numbers(rows) == list(range(ROWS))
    assert facts.rows == ROWS


def test_rows_are_scaled_to_unit_length(client: Client, tmp_path: Path) -> None:
    path = str(write(tmp_path / "train.txt", lines()))
    rows, _, _ = ingested(client, DataSection(train=(path,)), 2, normalize="l2")
    squares = to_scipy(rows.features).power(2).sum(axis=1).A1
    np.testing.assert_allclose(squares, 1.0, rtol=1e-6)


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("given", ["auto", "base"])
def test_libsvm_counts_from_zero_or_one(
    client: Client, tmp_path: Path, base: int, given: str
) -> None:
    path = str(write(tmp_path / "train.svm", lines(base), header=False))
    source = DataSection(train=(path,), feature_base=base if given == "base" else "auto")
    rows, facts, _ = ingested(client, source, 2)
    assert facts.feature_base == base
    assert facts.features <= FEATURES
    assert sorted(numbers(rows)) == list(range(ROWS))


def test_ids_beyond_the_given_counts_name_file_and_line(client: Client, tmp_path: Path) -> None:
    path = str(write(tmp_path / "train.svm", lines(1), header=False))
    with pytest.raises(InputError, match=r"train.svm:\d+: .*10"):
        ingested(client, DataSection(train=(path,), features=10), 1)


def test_the_first_bad_row_in_the_order_of_the_files_is_told(
    client: Client, tmp_path: Path
) -> None:
    text = lines()
    text[20], text[80] = "1 3:x", "1 4:nan"
    paths = [
        str(write(tmp_path / "a.txt", text[50:])),
        str(write(tmp_path / "b.txt", text[:50])),
    ]
    with pytest.raises(InputError, match=r"a.txt:32: .*4:nan"):
        ingested(client, DataSection(train=tuple(paths), block_bytes=100), 1)


def test_headers_must_be_in_all_files_or_in_none(client: Client, tmp_path: Path) -> None:
    paths = [
        str(write(tmp_path / "a.txt", lines())),
        str(write(tmp_path / "b.txt", lines(), header=False)),
    ]
    for order in (paths, paths[::-1]):
        with pytest.raises(InputError, match=r"b.txt:1: no header"):
            ingested(client, DataSection(train=tuple(order)), 1)


@pytest.mark.parametrize(
    "name", ["lists.parquet", "file.arrow", "lists.jsonl", "texts.csv", "X.npz"]
)
def test_tables_are_read_in_blocks_on_the_workers(
    client: Client, tmp_path: Path, name: str
) -> None:
    rows = [([i % LABELS], [0, 1 + i % 5], [i + 1.0, 0.5]) for i in range(ROWS)]
    WRITERS[name](tmp_path / name, rows)
    source = DataSection(train=(str(tmp_path / name),), block_bytes=1200, features=FEATURES)
    found, facts, _ = ingested(client, source, 3)
    assert (facts.rows, facts.features, facts.labels) == (ROWS, FEATURES, LABELS)
    assert sorted(numbers(found)) == list(range(ROWS))
    assert numbers(found) != list(range(ROWS))
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match="no such file"):
        ingested(client, source, 3)


@pytest.mark.parametrize("stamps", [[["train.txt", 1, 2]], None])
def test_runs_share_rows_of_files_that_can_be_asked(stamps: Any) -> None:
    """Where they cannot be, the name is the run's own."""

    async def stamped(*args: Any, **options: Any) -> Any:
        return stamps

    config = load_run_config({"data": {"train": ["train.txt"]}, "training": {"epochs": 1}})
    client = cast("Any", SimpleNamespace(submit=stamped))
    names = [asyncio.run(_name_rows(client, config, run, {})) for run in ("one", "two")]
    assert names == ["one", "two"] if stamps is None else names[0] == names[1]
