"""Shuffled partitions, and the rows that are held out of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.errors import InputError
from daskxml.data.parse import parse_bytes
from daskxml.data.reading import Recipe, checksum, count_held, shuffle_key
from daskxml.data.settings import DataSection
from harness.rows_here import read_here, shuffle_here


def block(first, rows):
    text = "".join(f"0 0:{number + 1}\n" for number in range(first, first + rows))
    return parse_bytes(text.encode()).partition


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    parts=st.integers(1, 5),
    share=st.sampled_from([0.0, 0.01, 0.3, 0.99]),
    key=st.sampled_from([None, 1, 2]),
)
def test_held_out_rows_are_the_last_of_the_order_and_nothing_is_lost(sizes, parts, share, key):
    rows = sum(sizes)
    held = count_held(rows, share) if rows > 1 else 0
    starts = np.cumsum([0, *sizes[:-1]])
    blocks = [block(start, size) for start, size in zip(starts, sizes, strict=True)]
    common = {"rows": rows, "shuffle_key": key, "features": 1, "labels": 1, "shift": 0}
    recipe = Recipe(
        **common, normalize="none", held_rows=held,
        parts=min(parts, rows - held), held_parts=min(parts, held),
    )  # fmt: skip
    found = shuffle_here(blocks, recipe)
    assert len(found) == recipe.pieces
    assert sum(part.rows for part in found[recipe.parts :]) == held
    (whole,) = shuffle_here(blocks, Recipe(**common, normalize="none", parts=1))
    order = np.concatenate([part.features.data for part in found])
    assert np.array_equal(order, whole.features.data)
    assert sorted(order) == list(range(1, rows + 1))


@pytest.mark.parametrize(
    ("parts", "expected"), [(1, [139763341]), (3, [1597730823, 444921546, 2008859460])]
)
@pytest.mark.parametrize("block_bytes", [700, 1 << 20])
def test_rows_are_those_of_the_published_results(tmp_path, parts, expected, block_bytes):
    """To the bit: results are not measured again for a change of how files are read."""
    path = tmp_path / "rows.txt"
    lines = [
        f"{n % 7},{n % 11 + 3} "
        + " ".join(f"{n * k % 97 + 1}:{(n + k) % 13 / 4}" for k in range(9))
        for n in range(200)
    ]
    path.write_text("\n".join(lines) + "\n")
    blocks, facts = read_here(DataSection(train=(str(path),), block_bytes=block_bytes))
    recipe = Recipe(
        rows=facts.rows, parts=parts, shuffle_key=shuffle_key(7), features=facts.features,
        labels=facts.labels, shift=facts.shift, normalize="l2",
    )  # fmt: skip
    assert [checksum(part) for part in shuffle_here(blocks, recipe)] == expected


def test_a_single_row_cannot_be_divided():
    with pytest.raises(InputError, match=r"data\.validation"):
        count_held(1, 0.5)


def test_files_are_read_here_with_the_checks_of_a_cluster(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("3 2 2\n0 0:1\n1 1:1\n")
    with pytest.raises(InputError, match="header says 3 rows but the file has 2"):
        read_here(DataSection(train=(str(path),)))
    path.write_text("0 1:1\n1 3:1\n")
    blocks, facts = read_here(DataSection(train=(str(path),)))
    assert (facts.rows, facts.features, facts.labels, facts.shift) == (2, 3, 2, 1)
    assert len(blocks) == 1
    with pytest.raises(InputError, match=r"rows\.txt:2"):
        read_here(DataSection(train=(str(path),), features=2))
    path.write_text("")
    with pytest.raises(InputError, match=r"no rows|empty"):
        read_here(DataSection(train=(str(path),)))
