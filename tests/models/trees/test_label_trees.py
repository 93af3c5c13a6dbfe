"""Trees of labels: their shape, how labels are clustered, cut into pieces, and put together."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Array, Partition, Segment
from daskxml.core.errors import ConfigError, TrainingError
from daskxml.data.order import derive_key
from daskxml.data.rows import on_disk, slice_rows, to_scipy
from daskxml.kernels import get_kernels
from daskxml.models.trees.clustering import cut_in_two, find_label_vectors, order_of_tree
from daskxml.models.trees.forest import Forest, assemble_tree, tree_problem
from daskxml.models.trees.nodes import (
    NodeBlock,
    Room,
    TreeRows,
    fit_blocks,
    pack_blocks,
    plan_pieces,
    powered,
    unpack_blocks,
    whole_nodes,
)
from daskxml.models.trees.spec import TreeShape, TreeSpec
from harness.small_data import random_rows

FIT: dict[str, Any] = {"passes": 4, "cost": 1.0}
modest = settings(max_examples=30, deadline=None)
specs = st.builds(
    TreeSpec, features=st.just(20), labels=st.integers(1, 400), leaf_labels=st.integers(1, 60),
    branching=st.integers(2, 300),
)  # fmt: skip


def some_part(rng: np.random.Generator, rows: int, features: int, labels: int) -> Partition:
    return Partition(
        powered(random_rows(rng, rows, features, min(features, 6)), 2.0),
        random_rows(rng, rows, labels, min(labels, 4), ones=True),
    )


@modest
@given(spec=specs)
def test_every_label_is_a_leaf_of_one_node(spec: TreeSpec) -> None:
    shape = TreeShape.of(spec)
    for level in range(shape.levels):
        bounds, starts = shape.bounds[level], shape.child_starts(level)
        assert bounds[0] == 0
        assert bounds[-1] == spec.labels
        assert (np.diff(bounds) >= 1).all()
        assert (np.diff(starts) >= 1).all()
        assert starts[-1] == shape.bounds[level + 1].shape[0] - 1
        assert level == shape.levels - 1 or np.diff(starts).max() <= spec.branching
    leaves = np.diff(shape.bounds[-2])
    assert leaves.max() - leaves.min() <= shape.levels * 5
    assert leaves.max() <= max(2 * spec.leaf_labels, 2)


@modest
@given(spec=specs, slots=st.integers(1, 20), seed=st.integers(0, 99))
def test_every_child_is_in_one_piece(spec: TreeSpec, slots: int, seed: int) -> None:
    shape, rng = TreeShape.of(spec), np.random.default_rng(seed)
    counts = rng.integers(0, 50, spec.labels)
    plan = plan_pieces(shape, counts, 100, slots)
    assert all(piece.blocks for piece in plan)
    covered = sorted(block for piece in plan for block in piece.blocks)
    expected = []
    for level in range(shape.levels):
        for node, width in enumerate(np.diff(shape.child_starts(level))):
            own = [block for block in covered if block[:2] == (level, node)]
            assert own[0].start == 0
            assert own[-1].stop == width
            assert all(a.stop == b.start for a, b in itertools.pairwise(own))
            expected += own
    assert sorted(expected) == covered
    works, whole = [piece.work for piece in plan], 0.0
    for level, node, _, width in whole_nodes(shape):
        low, high = shape.bounds[level][node : node + 2]
        whole += min(counts[low:high].sum(), 100) * (width + 50) + 1
    assert sum(works) >= 0.999 * whole  # blocks read rows again
    for number, piece in enumerate(plan):  # several blocks are at most a share of what is left
        share = max(sum(works[number:]) / (4 * slots), sum(works) / 400)
        assert len(piece.blocks) == 1 or works[number] <= share * (1 + 1e-9)


def orders_of(parts: list[Partition], spec: TreeSpec, trees: int, seed: int) -> list[Array]:
    vectors = find_label_vectors([(part, 0, part.rows) for part in parts], spec, seed)
    return [order_of_tree(vectors, spec, seed, tree) for tree in range(trees)]


def test_similar_labels_share_a_node() -> None:
    """Labels of one group share features, which those of the other do not have."""
    rng = np.random.default_rng(2)
    first, second = some_part(rng, 60, 10, 8), some_part(rng, 60, 10, 8)
    from daskxml.core.arrays import Csr

    features = Csr(
        np.concatenate(
            [first.features.indptr, first.features.indptr[-1] + second.features.indptr[1:]]
        ),
        np.concatenate([first.features.indices, second.features.indices + 10]).astype(np.int32),
        np.concatenate([first.features.data, second.features.data]),
        20,
    )
    labels = Csr(
        np.concatenate([first.labels.indptr, first.labels.indptr[-1] + second.labels.indptr[1:]]),
        np.concatenate([first.labels.indices, second.labels.indices + 8]).astype(np.int32),
        None,
        16,
    )
    spec = TreeSpec(features=20, labels=16, leaf_labels=8)
    order = orders_of([Partition(features, labels)], spec, 1, seed=4)[0]
    assert {tuple(sorted(order[:8])), tuple(sorted(order[8:]))} == {
        tuple(range(8)), tuple(range(8, 16))
    }  # fmt: skip


@modest
@given(seed=st.integers(0, 99), cut=st.integers(1, 39))
def test_the_trees_do_not_depend_on_how_rows_are_cut(seed: int, cut: int) -> None:
    part = some_part(np.random.default_rng(seed), 40, 15, 30)
    spec = TreeSpec(features=15, labels=30, leaf_labels=4)
    parts = [slice_rows(part, cut, 40), slice_rows(part, 0, cut)]
    np.testing.assert_array_equal(orders_of(parts, spec, 2, seed), orders_of([part], spec, 2, seed))


@modest
@given(count=st.integers(2, 40), seed=st.integers(0, 99))
def test_labels_are_cut_into_halves_of_the_size_asked_for(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, 3)).astype(np.float32)
    vectors[rng.random(count) < 0.3] = 0.0  # labels without rows
    assert cut_in_two(vectors, (count + 1) // 2, rng).sum() == (count + 1) // 2


def fitted_tree(
    spec: TreeSpec, part: Partition, slots: int = 2, room: Room | None = None
) -> dict[str, np.ndarray]:
    kernels, shape = get_kernels("cpu", 1), TreeShape.of(spec)
    (order,) = orders_of([part], spec, 1, 0)
    counts = np.bincount(part.labels.indices, minlength=spec.labels)[order]
    rows = TreeRows(kernels, part, order, spec.power_of(0))
    blocks: list[tuple[NodeBlock, object]] = []
    for piece in plan_pieces(shape, counts, part.rows, slots, room=room):
        fitted = fit_blocks(rows, spec, shape, piece.blocks, 0, 0)
        blocks += zip(piece.blocks, unpack_blocks(pack_blocks(fitted)), strict=True)
    arrays = assemble_tree(order, blocks[::-1])  # type: ignore[arg-type]
    return {f"tree0.{name}": array for name, array in arrays.items()}


def test_nodes_see_the_rows_with_labels_below_and_half_as_many_others() -> None:
    """The same for all of its blocks; of a block's children only a row's own are its labels."""
    rng = np.random.default_rng(8)
    part, order = some_part(rng, 300, 9, 20), rng.permutation(20)
    spec = TreeSpec(features=9, labels=20, leaf_labels=5, **FIT)
    shape = TreeShape.of(spec)
    own = to_scipy(part.labels).toarray()[:, order] > 0
    rows = TreeRows(get_kernels("cpu", 1), part, order)
    for node in range(shape.bounds[1].shape[0] - 1):
        low, high = shape.bounds[1][node : node + 2]
        problem = rows.problem(spec, shape, NodeBlock(1, node, 1, int(high - low)), key=node)
        found, children = problem.rows, problem.children
        expected = np.flatnonzero(own[:, low:high].any(axis=1))
        others = np.setdiff1d(found, expected)
        assert np.isin(expected, found).all()
        assert 0 < len(others) <= len(expected) / 2
        assert own[others].any(axis=1).all()  # rows without any label say nothing
        np.testing.assert_array_equal(to_scipy(children).toarray() > 0, own[found, low + 1 : high])
        first = rows.problem(spec, shape, NodeBlock(1, node, 0, 1), key=node)
        np.testing.assert_array_equal(first.rows, found)


def test_any_number_of_pieces_gives_the_same_bits() -> None:
    part = some_part(np.random.default_rng(5), 80, 12, 90)
    spec = TreeSpec(features=12, labels=90, leaf_labels=40, **FIT)
    one, many = fitted_tree(spec, part, 1), fitted_tree(spec, part, 9)
    for name, array in one.items():
        np.testing.assert_array_equal(array, many[name], err_msg=name)


@modest
@given(spec=specs, mib=st.floats(0.2, 4.0), seed=st.integers(0, 9))
def test_blocks_fit_the_memory_that_there_is(spec: TreeSpec, mib: float, seed: int) -> None:
    """Or a line says that nothing fits; every label is in one piece either way."""
    counts = np.random.default_rng(seed).integers(0, 100, spec.labels)
    shape, room = TreeShape.of(spec), Room(mib * 2**20, 500, 20.0)
    if room.taken(min(9000, int(1.5 * counts.sum())), 8) > room.nbytes:  # the root sees most rows
        with pytest.raises(TrainingError, match=r"^a node of [\d,]* rows needs [^\n]*memory_limit"):
            plan_pieces(shape, counts, 9000, 2, room=room)
        return
    pieces = plan_pieces(shape, counts, 9000, 2, room=room)
    assert max(piece.nbytes for piece in pieces) <= room.nbytes
    blocks = sorted(block for piece in pieces for block in piece.blocks)
    found = [range(block.start, block.stop) for block in blocks]
    widths = [node.stop for node in whole_nodes(shape)]
    assert list(itertools.chain(*found)) == list(itertools.chain(*map(range, widths)))


@pytest.mark.parametrize("power", [1.0, 0.7])
def test_rows_on_disk_and_little_memory_give_the_same_bits(power: float) -> None:
    part = some_part(np.random.default_rng(5), 80, 12, 90)
    spec = TreeSpec(features=12, labels=90, leaf_labels=40, powers=(power,), **FIT)
    one = fitted_tree(spec, part)
    many = fitted_tree(spec, on_disk(part), room=Room(9000.0, 12, 6.0, copies=False))
    for name, array in one.items():
        np.testing.assert_array_equal(array, many[name], err_msg=name)


@pytest.mark.parametrize(
    ("labels", "rows"), [(1, 5), (2, 9), (70, 3)], ids=["one label", "two labels", "few rows"]
)
def test_odd_sizes_are_fitted_and_ranked(labels: int, rows: int) -> None:
    part = some_part(np.random.default_rng(1), rows, 6, labels)
    spec = TreeSpec(features=6, labels=labels, leaf_labels=10, **FIT)
    forest = Forest(spec, fitted_tree(spec, part), get_kernels("cpu", 1))
    ids, scores = forest.top_k([Segment(part, np.arange(rows))], min(3, labels))
    assert ids.shape == scores.shape == (rows, min(3, labels))
    assert ((ids >= 0) & (ids < labels)).all()
    assert (np.diff(scores, axis=1) <= 0).all()


def test_a_row_with_all_labels_and_one_without_any() -> None:
    from daskxml.core.arrays import Csr

    features = Csr(np.array([0, 1, 2]), np.array([0, 1], np.int32), np.ones(2, np.float32), 2)
    labels = Csr(np.array([0, 30, 30]), np.arange(30, dtype=np.int32), None, 30)
    part = Partition(features, labels)
    spec = TreeSpec(features=2, labels=30, leaf_labels=4, **FIT)
    forest = Forest(spec, fitted_tree(spec, part), get_kernels("cpu", 1))
    _, scores = forest.top_k([Segment(part, np.arange(2))], 3)
    assert (scores[0] > 0.5).all()


@pytest.mark.parametrize("name", ["order", "bias", "node_starts", "features", "chunk_starts",
                                  "children", "weights"])  # fmt: skip
def test_damaged_arrays_are_named(name: str) -> None:
    """Kernels trust the numbers in a file, so the reader must not."""
    part = some_part(np.random.default_rng(1), 40, 6, 20)
    spec = TreeSpec(features=6, labels=20, leaf_labels=5, **FIT)
    arrays = fitted_tree(spec, part)
    assert tree_problem(spec, arrays) == ""
    key = f"tree0.{name}"
    shorter = arrays | {key: arrays[key][:-1]}
    assert "contradict" in tree_problem(spec, shorter)
    assert "one row of" in tree_problem(spec, arrays | {key: arrays[key].astype(np.float64)})
    missing = {other: array for other, array in arrays.items() if other != key}
    assert tree_problem(spec, missing)
    if name not in ("bias", "weights"):
        wrong = arrays[key].copy()
        wrong[len(wrong) // 2] = 60_000
        assert "contradict" in tree_problem(spec, arrays | {key: wrong})
    if name.endswith("_starts"):
        wrong = arrays[key].copy()
        wrong[1:3] = 1 << 62, -(1 << 62) - 1  # no difference is below 0, as some overflow
        assert (np.diff(wrong) >= 0).all()
        assert "contradict" in tree_problem(spec, arrays | {key: wrong})


@pytest.mark.parametrize(
    "values", [{"powers": ()}, {"powers": (0.0,)}, {"leaf_labels": 0}, {"passes": 0}, {"cost": 0.0},
               {"passes": "auto"}, {"beam": 0}, {"beam": True}, {"labels": 0}],
)  # fmt: skip
def test_settings_out_of_range(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TreeSpec(**{"features": 2, "labels": 2, **values})  # type: ignore[arg-type]


def test_each_tree_has_its_own_seed() -> None:
    part = some_part(np.random.default_rng(5), 80, 12, 40)
    orders = orders_of([part], TreeSpec(features=12, labels=40, leaf_labels=4), 2, 0)
    assert (orders[0] != orders[1]).any()
    assert derive_key(0, 4, 0) != derive_key(0, 4, 1)


def test_trees_stored_before_branching_could_be_chosen_keep_their_shape() -> None:
    spec = TreeSpec(features=2, labels=21_764, leaf_labels=200)
    values = spec.as_dict() | {"hard_negatives": 5}  # which is no more
    del values["branching"]
    assert TreeSpec.from_dict(values).level_bits == (4, 3)
    assert TreeSpec.from_dict(spec.as_dict()).level_bits == (7,)
