"""Kernels of label trees against their naive twins."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.data.rows import slice_rows, take_rows, to_scipy
from daskxml.kernels import get_kernels
from daskxml.kernels.cpu import tree
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.kernels.cpu.tree import fit_node, large_weights, node_rows
from daskxml.kernels.operands import FittedBlock, NodeProblem, TreeArrays
from daskxml.models.trees.nodes import NodeBlock, TreeRows, fit_blocks, join_blocks
from daskxml.models.trees.spec import TreeShape, TreeSpec
from harness import naive_tree
from harness.cuda_on_host import emulated, needs_compiler
from harness.kernel_cases import EVERY, EVERY_THREADS, modest, random_csr, seeds
from harness.naive_tree import NaiveTree

NAIVE = NaiveTree()


def some_rows(rng: np.random.Generator, rows: int, columns: int) -> Csr:
    return random_csr(rng, rows, columns, density=rng.uniform(0.0, 0.6))


def random_tree(rng: np.random.Generator, labels: int, features: int) -> TreeArrays:
    """Some weights of every node, of a tree with few labels a leaf."""
    shape = TreeShape.of(TreeSpec(features=features, labels=labels, leaf_labels=3))
    widths = np.concatenate([np.diff(shape.child_starts(n)) for n in range(shape.levels)])
    names, counts, children, node_starts = [], [], [], [0]
    for width in widths:
        for feature in np.flatnonzero(rng.random(features) < 0.5):
            own = np.flatnonzero(rng.random(width) < 0.6)
            if len(own):
                names.append(feature)
                counts.append(len(own))
                children += own.tolist()
        node_starts.append(len(names))
    return TreeArrays(
        levels=shape.levels,
        child_starts=1 + np.append(0, np.cumsum(widths)),
        bias=rng.standard_normal(int(widths.sum())).astype(np.float32),
        node_starts=np.array(node_starts),
        features=np.array(names, np.int32),
        chunk_starts=np.append(0, np.cumsum(counts)).astype(np.int64),
        children=np.array(children, np.uint16),
        weights=rng.standard_normal(len(children)).astype(np.float32),
    )


@modest
@given(seed=seeds)
def test_rows_are_gathered_with_the_nodes_own_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = some_rows(rng, 12, 9)
    rows = np.flatnonzero(rng.random(12) < 0.5)
    (found, names), (expected, expected_names) = node_rows(x, rows), NAIVE.node_rows(x, rows)
    np.testing.assert_array_equal(names, expected_names)
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.data, expected.data)
    assert found.columns == expected.columns


def random_problem(
    rng: np.random.Generator, rows: Array, children: int, *, weighs: bool
) -> NodeProblem:
    """Labels below some rows, which may be none."""
    y = random_csr(rng, len(rows), children, ones=True)
    weights = rng.choice(np.float32([0, 0.5, 1, 3]), len(rows) + children)
    key = int(rng.integers(2**63))
    costs = rng.uniform(0.1, 2.0, y.columns).astype(np.float32)
    if not weighs:
        return NodeProblem(rows, y, key, costs)
    return NodeProblem(rows, y, key, costs, weights[: len(rows)], weights[len(rows) :])


@EVERY
@settings(modest, max_examples=5)
@given(seed=seeds, weighs=st.booleans())
def test_nodes_are_fitted_as_one_child_at_a_time(ops: CpuKernels, seed: int, weighs: bool) -> None:
    rng = np.random.default_rng(seed)
    count, columns = int(rng.integers(1, 9)), int(rng.choice([1, 7, 300]))
    x = some_rows(rng, count, columns)
    problems = [
        random_problem(
            rng, np.flatnonzero(rng.random(count) < share), int(rng.integers(1, 36)), weighs=weighs
        )
        for share in (0.0, 0.7)
    ]
    found = ops.fit_nodes(x, problems, 2, 0.0)
    for mine, naive in zip(found, NAIVE.fit_nodes(x, problems, 2, 0.0), strict=True):
        for array, wanted in zip(mine, naive, strict=True):
            assert array.dtype == wanted.dtype
            np.testing.assert_allclose(array, wanted, rtol=1e-3, atol=3e-4)


@EVERY
def test_small_weights_of_a_node_are_dropped(ops: CpuKernels) -> None:
    rng = np.random.default_rng(11)
    x = some_rows(rng, 20, 9)
    problem = random_problem(rng, np.arange(20), 40, weighs=False)
    (every,) = ops.fit_nodes(x, [problem], 1, 0.0)
    (large,) = ops.fit_nodes(x, [problem], 1, 0.2)
    is_large = np.abs(every.weights) >= 0.2
    assert 0 < is_large.sum() < len(is_large)
    np.testing.assert_array_equal(large.bias, every.bias)
    np.testing.assert_array_equal(large.weights, every.weights[is_large])
    np.testing.assert_array_equal(large.children, every.children[is_large])
    np.testing.assert_array_equal(
        np.repeat(large.features, large.counts),
        np.repeat(every.features, every.counts)[is_large],
    )


@needs_compiler
def test_a_gpu_fits_as_many_nodes_together_as_it_has_memory_for() -> None:
    rng = np.random.default_rng(12)
    x = some_rows(rng, 6, 200)
    problems = [random_problem(rng, np.arange(6), 33, weighs=False) for _ in range(5)]
    fitted, launches = [], []
    for budget in (0, 250_000):
        kernels = emulated(budget_bytes=budget)
        fitted.append(kernels.fit_nodes(kernels.to_device(x), problems, 1, 0.0))
        launches.append(kernels._device.queued["fit_nodes"])
    assert launches[0] == 1
    assert 1 < launches[1] <= 5
    for one, other in zip(*fitted, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def fitted_weights(x: Csr, problem: NodeProblem, passes: int) -> Array:
    children = problem.children.columns
    weight = np.zeros((x.columns, children + 5), np.float32)  # padded
    fit_node(weight, x, problem, passes)
    assert not weight[:, children:].any()
    return weight[:, :children]


def test_a_row_of_weight_two_is_the_row_twice() -> None:
    rng = np.random.default_rng(4)
    x, _ = node_rows(some_rows(rng, 30, 8), np.arange(30))
    y, counts = random_csr(rng, 30, 3, ones=True), rng.integers(0, 4, 30)
    repeated = take_rows(Partition(x, y), np.repeat(np.arange(30), counts))
    costs = np.float32([0.2, 0.5, 0.8])
    weighted = NodeProblem(np.arange(30), y, 1, costs, counts.astype(np.float32))
    several = NodeProblem(np.arange(repeated.rows), repeated.labels, 1, costs)
    np.testing.assert_allclose(
        fitted_weights(x, weighted, 2000),
        fitted_weights(repeated.features, several, 2000),
        atol=1e-4,
    )


def test_dual_coordinate_descent_finds_the_best_weights() -> None:
    """At the solution every dual variable is 2 C times the row's hinge."""
    rng = np.random.default_rng(3)
    x, _ = node_rows(some_rows(rng, 30, 8), np.arange(30))
    costs = np.float32([0.5, 1.0, 2.0])
    problem = NodeProblem(np.arange(30), random_csr(rng, 30, 3, ones=True), 1, costs)
    weight = fitted_weights(x, problem, 3000)
    dense = to_scipy(x).toarray().astype(np.float64)
    signs = np.where(to_scipy(problem.children).toarray() > 0, 1.0, -1.0)
    hinge = np.maximum(0.0, 1.0 - signs * (dense @ weight))
    np.testing.assert_allclose(weight, dense.T @ (2 * costs * hinge * signs), atol=2e-3)


@modest
@given(seed=seeds, smallest=st.sampled_from([0.0, 0.3, 5.0]))
def test_small_weights_are_dropped(seed: int, smallest: float) -> None:
    rng = np.random.default_rng(seed)
    padded = rng.standard_normal((6, 7)).astype(np.float32)
    weight = padded[:, :4]
    weight[rng.random((6, 4)) < 0.3] = 0.0
    names = np.arange(5, dtype=np.int32) * 2
    counts, *kept = large_weights(padded[1:], 4, np.float32(smallest))
    pruned = names[counts > 0], counts[counts > 0], *kept
    for found, expected in zip(pruned, NAIVE.prune(weight, names, smallest), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@EVERY_THREADS
@settings(modest, max_examples=15)
@given(seed=seeds)
def test_rows_descend_to_the_best_leaves(fast: CpuKernels, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, features = int(rng.integers(1, 40)), int(rng.integers(1, 8))
    arrays = random_tree(rng, labels, features)
    x = some_rows(rng, 12, features)
    rows = rng.permutation(12)
    beam, count = int(rng.integers(1, 6)), int(rng.integers(1, 8))
    ids, scores = fast.rank_leaves(fast.tree_weights(arrays), x, rows, beam, count)
    more = NAIVE.rank_leaves(NAIVE.tree_weights(arrays), x, rows, beam, count + 1)
    naive_ids, naive = (each[:, :count] for each in more)
    np.testing.assert_allclose(scores, naive, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(ids < 0, naive_ids < 0)
    finite = np.where(more[0] >= 0, more[1], -1e6 - np.arange(count + 1))
    is_clear = (np.diff(finite, axis=1) < -1e-2).all(axis=1)  # ranks that rounding cannot swap
    np.testing.assert_array_equal(ids[is_clear], naive_ids[is_clear])


def test_the_read_only_arrays_of_a_file_compile_nothing_anew() -> None:
    rng, kernels = np.random.default_rng(5), get_kernels("cpu", 1)
    arrays, given = random_tree(rng, 20, 6), (some_rows(rng, 9, 6), np.arange(9), 3, 4)
    expected = kernels.rank_leaves(kernels.tree_weights(arrays), *given)
    compiled = len(tree.fill_table.signatures), len(tree.rank_rows.signatures)
    for array in (arrays.bias, arrays.node_starts, arrays.features, arrays.chunk_starts,
                  arrays.children, arrays.weights):  # fmt: skip
        array.flags.writeable = False
    found = kernels.rank_leaves(kernels.tree_weights(arrays), *given)
    np.testing.assert_array_equal(found, expected)
    assert (len(tree.fill_table.signatures), len(tree.rank_rows.signatures)) == compiled


@EVERY_THREADS
@modest
@given(seed=seeds)
def test_rankings_are_averaged(fast: CpuKernels, seed: int) -> None:
    rng = np.random.default_rng(seed)
    models, rows, candidates = (int(n) for n in rng.integers(1, 5, 3))
    ids = np.stack(
        [[rng.permutation(6)[:candidates] for _ in range(rows)] for _ in range(models)]
    ).astype(np.int32)
    scores = rng.integers(1, 9, ids.shape).astype(np.float32)
    ids[:, :, candidates - 1][rng.random((models, rows)) < 0.3] = -1
    shares = np.full(models, 0.5, np.float32)
    for found, expected in zip(
        fast.average_rankings(ids, scores, shares, 4),
        NAIVE.average_rankings(ids, scores, shares, 4),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


@EVERY
def test_a_block_has_the_same_bits_whichever_others_are_fitted(ops: CpuKernels) -> None:
    """A child's weights do not depend on the width of its block."""
    rng = np.random.default_rng(8)
    spec = TreeSpec(features=9, labels=40, leaf_labels=100, passes=2, cost=1.0)
    part = Partition(some_rows(rng, 15, 9), random_csr(rng, 15, 40, ones=True))
    kernels = getattr(ops, "kernels", ops)
    rows, shape = TreeRows(kernels, part, np.arange(40, dtype=np.int32)), TreeShape.of(spec)

    def fitted(start: int, stop: int) -> FittedBlock:
        (block,) = fit_blocks(rows, spec, shape, [NodeBlock(0, 0, start, stop)], 7, 0)
        return block

    whole, parts = fitted(0, 40), [fitted(0, 13), fitted(13, 40)]
    np.testing.assert_array_equal(whole.bias, np.concatenate([part.bias for part in parts]))
    joined = join_blocks(parts)
    for found, expected in zip(joined, whole, strict=True):
        np.testing.assert_array_equal(found, expected)


@modest
@given(seed=seeds, cut=st.integers(0, 12))
def test_sums_over_rows_are_exact_in_any_order(seed: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = some_rows(rng, 12, 9), random_csr(rng, 12, 7, ones=True)
    directions = rng.standard_normal((9, 5), dtype=np.float32)
    vectors = rng.standard_normal((7, 5), dtype=np.float32)
    part = Partition(x, y)
    first, second = slice_rows(part, 0, cut), slice_rows(part, cut, 12)
    for name, operand in (("label_sums", directions), ("feature_sums", vectors)):
        expected, found = getattr(naive_tree, name)(part, operand), getattr(tree, name)
        np.testing.assert_array_equal(found(part, operand), expected)
        np.testing.assert_array_equal(found(second, operand) + found(first, operand), expected)
