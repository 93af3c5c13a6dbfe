"""Labels that come later: where they go, what they are fitted to, and that nothing else changes."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import daskxml
from daskxml.api.in_process import train_here
from daskxml.cli import main
from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.data.rows import from_scipy, to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import get_kernels
from daskxml.models.protocol import joined_arrays, split_arrays
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model
from daskxml.models.trees import extending
from daskxml.models.trees.extending import ArrivedRows, arrivals, choose_parents
from daskxml.models.trees.forest import assemble_tree, tree_problem
from daskxml.models.trees.kind import label_path
from daskxml.models.trees.nodes import NodeBlock, TreeRows, fit_blocks, powered, whole_nodes
from daskxml.models.trees.spec import TreeShape, TreeSpec
from harness.commands import refusal
from harness.small_data import random_rows
from harness.small_models import network_and_trees

OLD, ALL = 50, 60
ROWS = SyntheticSpec(rows=400, test_rows=80, features=80, labels=ALL, seed=2)
SMALL = ["model.leaf_labels=4", "model.branching=4", "model.beam=3", "training.trees=2"]


@pytest.fixture(scope="module")
def parts() -> list[tuple[Any, Any]]:
    return [(to_scipy(part.features), to_scipy(part.labels)) for part in generate(ROWS)]


def trained(X: Any, Y: Any, *more: str) -> Model:
    rows = daskxml.Matrices(X, Y)
    return train_here("best", train=rows, overrides=[*SMALL, *more]).model


@pytest.fixture(scope="module")
def before(parts: list[tuple[Any, Any]]) -> Model:
    X, Y = parts[0]
    return trained(X, Y[:, :OLD])


@pytest.fixture(scope="module")
def after(before: Model, parts: list[tuple[Any, Any]]) -> Model:
    return before.extend(*parts[0])


def shape_of(spec: TreeSpec, tree: dict[str, Array]) -> TreeShape:
    return TreeShape.of(spec, tree.get("leaf_starts"))


def check_extended(old: Model, new: Model) -> None:
    """Every old score is the same bit for bit, every new label is a leaf of one node."""
    assert tree_problem(new.spec, new.parameters) == ""
    pairs = zip(
        split_arrays(old.parameters, "tree"), split_arrays(new.parameters, "tree"), strict=True
    )
    for was, now in pairs:
        for label in range(old.spec.labels):
            paths = label_path(old.spec, was, label), label_path(new.spec, now, label)
            for one, other in zip(*paths, strict=True):
                assert one.bias == other.bias
                np.testing.assert_array_equal(one.features, other.features)
                np.testing.assert_array_equal(one.weights, other.weights)
        shapes = shape_of(old.spec, was), shape_of(new.spec, now)
        assert shapes[0].levels == shapes[1].levels
        assert [len(bounds) for bounds in shapes[0].bounds[:-1]] == [
            len(bounds) for bounds in shapes[1].bounds[:-1]
        ]
        starts = shapes[0].bounds[-2], shapes[1].bounds[-2]
        for node in range(len(starts[0]) - 1):
            own = now["order"][starts[1][node] : starts[1][node + 1]]
            first = was["order"][starts[0][node] : starts[0][node + 1]]
            np.testing.assert_array_equal(own[: len(first)], first)
            assert (own[len(first) :] >= old.spec.labels).all()


def test_old_scores_stay_bit_for_bit(before: Model, after: Model, parts: Any) -> None:
    X, Y = parts[0]
    check_extended(before, after)
    assert after.spec.labels == ALL
    np.testing.assert_array_equal(after.label_counts, Y.getnnz(axis=0))
    wide = np.concatenate([before.probabilities(X), np.zeros((X.shape[0], ALL - OLD))], axis=1)
    np.testing.assert_array_equal(after.probabilities(X)[:, :OLD], wide[:, :OLD])


def test_rows_of_new_labels_find_them(before: Model, after: Model, parts: Any) -> None:
    X, Y = parts[1]
    anew = trained(*parts[0])
    found, whole = after.evaluate(X, Y), anew.evaluate(X, Y)
    assert found["recall@5"] > whole["recall@5"] - 0.08
    ids, _ = after.predict_top_k(X, 5)
    truth = Y.toarray() > 0
    is_hit = truth[np.arange(len(ids))[:, None], ids] & (ids >= OLD)
    assert is_hit.sum() > 0.3 * truth[:, OLD:].sum()


def test_labels_come_in_two_turns(before: Model, parts: Any) -> None:
    X, Y = parts[0]
    first = before.extend(X, Y[:, :55])
    second = first.extend(X, Y)
    check_extended(before, first)
    check_extended(first, second)
    for row in (0, 3):
        ids, _ = second.predict_top_k(X[row], 5)
        assert (ids < ALL).all()


def test_an_extended_model_is_a_model_like_any_other(
    after: Model, parts: Any, tmp_path: Any
) -> None:
    X = parts[1][0]
    wanted = after.predict_top_k(X, 5)
    after.save(tmp_path / "model")
    for other in (daskxml.load(tmp_path / "model"), pickle.loads(pickle.dumps(after))):
        for one, two in zip(wanted, other.predict_top_k(X, 5), strict=True):
            np.testing.assert_array_equal(one, two)
    small = after.compress(drop=0.05)
    assert tree_problem(small.spec, small.parameters) == ""
    assert (small.predict_top_k(X, 1)[0] == wanted[0][:, :1]).mean() > 0.8
    assert repr(after) == "<daskxml.Model 80 -> 60, 2 label trees>"
    check_extended(small, small.extend(*widened(parts[0], 1)))


def widened(rows: Any, more: int) -> tuple[Any, Any]:
    """The rows with more labels, which are those of the first columns again."""
    X, Y = rows
    return X, sp.hstack([Y, Y[:, :more]]).tocsr()


def test_explanations_of_new_labels_add_up(after: Model, parts: Any) -> None:
    X = parts[1][0]
    empty = X[:1] * 0
    wide = Model(after.header, after.parameters, after.label_counts, threads=1)
    for label in (OLD, ALL - 1):
        _, added = wide.explain(X[:1], label)
        total = 0.0
        for number, tree in enumerate(split_arrays(wide.parameters, "tree")):
            path, products = label_path(wide.spec, tree, label), []
            for row in (X[:1], empty):
                values = powered(
                    Csr(np.array([0, row.nnz]), row.indices, unit(row), 80),
                    wide.spec.power_of(number),
                )
                dense = np.zeros(80)
                dense[values.indices] = values.data
                logs = [
                    -(max(0.0, 1 - step.bias - step.weights @ dense[step.features]) ** 3)
                    for step in path
                ]
                products.append(np.exp(sum(logs)))
            total += (products[0] - products[1]) / 2
        assert added.sum() == pytest.approx(total, rel=1e-4, abs=1e-7)


def unit(row: Any) -> Array:
    norm = np.linalg.norm(row.data)
    return (row.data / (norm or 1.0)).astype(np.float32)


def test_training_goes_on_from_an_extended_model(after: Model, parts: Any) -> None:
    rows = daskxml.Matrices(*parts[0])
    more = train_here("best", train=rows, overrides=SMALL, start=after).model
    trees = split_arrays(more.parameters, "tree")
    assert ["leaf_starts" in tree for tree in trees] == [True, True, False, False]
    np.testing.assert_array_equal(trees[0]["weights"], after.parameters["tree0.weights"])


def test_trees_that_are_added_take_the_power_of_the_values_from_the_model(parts: Any) -> None:
    """Whatever ranks best on their own rows: a model has one."""
    rows, flat = daskxml.Matrices(*parts[0]), ["model.value_power=0.5", "training.trees=1"]
    first = train_here("tree", train=rows, overrides=flat).model
    more = train_here("tree", train=rows, overrides=["model.value_power=1"], start=first).model
    assert more.spec.value_power == 0.5
    twice = train_here("tree", train=rows, overrides=flat, start=first).model
    for name, array in twice.parameters.items():
        np.testing.assert_array_equal(more.parameters[name], array)


# Slow twins of where labels go, and of what they are fitted to.


def arrivals_slowly(spec: TreeSpec, tree: dict[str, Array], X: Array) -> Array:
    """The probability of each row at each leaves' parent, by the path of one of its labels."""
    starts = shape_of(spec, tree).bounds[-2][:-1]
    found = np.ones((len(X), len(starts)))
    for parent, start in enumerate(starts):
        for step in label_path(spec, tree, int(tree["order"][start]))[:-1]:
            scores = step.bias + X[:, step.features] @ step.weights
            found[:, parent] *= np.exp(-(np.maximum(0.0, 1 - scores) ** 3))
    return found


def test_labels_go_where_their_rows_arrive(before: Model, parts: Any) -> None:
    X, Y = parts[0]
    (tree, _), spec = split_arrays(before.parameters, "tree"), before.spec
    part = Partition(*map(from_scipy, (unit_rows_of(X), Y)))
    shape = shape_of(spec, tree)
    slow = arrivals_slowly(spec, tree, unit_rows_of(X).toarray())
    every = arrivals(get_kernels("cpu", 1), shape, tree, part.features, len(shape.bounds[-2]))
    np.testing.assert_allclose(every.toarray(), slow, rtol=2e-3, atol=1e-6)
    sums = Y[:, OLD:].toarray().T @ slow
    np.testing.assert_array_equal(choose_parents(part.labels, OLD, every), sums.argmax(axis=1))
    few = arrivals(get_kernels("cpu", 1), shape, tree, part.features, 3)
    assert (few.getnnz(axis=1) == 3).all()


def unit_rows_of(X: Any) -> Any:
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).reshape(-1))
    return (sp.diags(1 / np.where(norms > 0, norms, 1)) @ X).tocsr()


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_new_label_is_fitted_to_all_rows_that_arrive(is_weighted: bool) -> None:
    rng = np.random.default_rng(4)
    spec = TreeSpec(features=9, labels=8, leaf_labels=3, cost=0.4)
    order, starts = np.array([0, 2, 6, 1, 7, 3, 4, 5], np.int32), np.array([0, 3, 5, 6, 8])
    shape, weights = TreeShape.of(spec, starts), rng.random(30, dtype=np.float32)
    part = Partition(
        random_rows(rng, 30, 9, 5), random_rows(rng, 30, 8, 2, ones=True),
        weights if is_weighted else None,
    )  # fmt: skip
    own, counts = to_scipy(part.labels).toarray() > 0, rng.integers(1, 90, 8)
    arrived = rng.random((30, 4)) * (rng.random((30, 4)) < 0.2)
    rows = ArrivedRows(get_kernels("cpu", 1), part, order, sp.csr_matrix(arrived), counts)
    for node, labels, old in ((0, [0, 2, 6], 2), (1, [1, 7], 1)):
        block = NodeBlock(1, node, old, len(labels))
        problem = rows.problem(spec, shape, block, key=1)
        wanted = np.flatnonzero(own[:, labels].any(axis=1) | (arrived[:, node] > 0))
        np.testing.assert_array_equal(problem.rows, wanted)
        np.testing.assert_array_equal(
            to_scipy(problem.children).toarray() > 0, own[wanted][:, labels[old:]]
        )
        np.testing.assert_array_equal(problem.costs, spec.child_costs(counts[labels])[old:])
        assert problem.row_weights is not None
        assert problem.child_weights is not None
        of_row = weights[wanted] if is_weighted else np.ones(len(wanted))
        others = counts[labels].sum() / len(wanted)
        np.testing.assert_allclose(problem.row_weights, others * of_row, rtol=1e-6)
        own_count = problem.row_weights[:, None] * problem.child_weights
        wide = np.tile(of_row[:, None], len(labels) - old)
        np.testing.assert_allclose(own_count, wide, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    old=st.integers(1, 40), new=st.integers(1, 30), rows=st.integers(2, 30),
    leaf_labels=st.integers(1, 9), branching=st.sampled_from([2, 4, 32]), beam=st.integers(1, 12),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_any_small_trees_are_extended(
    old: int, new: int, rows: int, leaf_labels: int, branching: int, beam: int, seed: int
) -> None:
    rng, kernels = np.random.default_rng(seed), get_kernels("cpu", 1)
    spec = TreeSpec(features=6, labels=old, leaf_labels=leaf_labels, branching=branching, cost=0.4,
                    beam=beam, powers=(1.0, 0.5))  # fmt: skip
    shape, order = TreeShape.of(spec), rng.permutation(old).astype(np.int32)
    part = Partition(
        powered(random_rows(rng, 25, 6, 4), 2.0), random_rows(rng, 25, old, min(old, 3), ones=True)
    )
    blocks = whole_nodes(shape)
    fitted = fit_blocks(TreeRows(kernels, part, order), spec, shape, blocks, seed, 0)
    tree = assemble_tree(order, list(zip(blocks, fitted, strict=True)))
    counts = np.bincount(part.labels.indices, minlength=old)
    header = ModelHeader(spec=spec, training_rows=25)
    model = Model(header, joined_arrays([tree, tree], "tree"), counts, threads=1)
    X = to_scipy(random_rows(rng, rows, 6, 4))
    Y = (rng.random((rows, old + new)) < 0.15).astype(np.float32)
    for label in range(old, old + new):
        Y[:, label] = rng.permutation(rows) <= rows // 8
    extended = model.extend(X, Y)
    check_extended(model, extended)
    ids, scores = extended.predict_top_k(X, min(5, old + new))
    assert ids.max() < old + new
    assert np.isfinite(scores[ids >= 0]).all()
    again = model.extend(X, Y)
    for name, array in extended.parameters.items():
        np.testing.assert_array_equal(array, again.parameters[name], err_msg=name)


def test_damaged_starts_are_named(after: Model) -> None:
    key, arrays = "tree1.leaf_starts", after.parameters
    starts = arrays[key]
    swapped, empty, far = starts.copy(), starts.copy(), starts.copy()
    swapped[1:3] = starts[2], starts[1]
    empty[1] = 0
    far[-1] += 1
    for wrong in (swapped, empty, far, starts[1:], starts[:0], starts[:1], starts[::3]):
        assert "contradict" in tree_problem(after.spec, arrays | {key: wrong})
    assert "one row of int64" in tree_problem(after.spec, arrays | {key: starts.astype(np.int32)})
    missing = {name: array for name, array in arrays.items() if name != key}
    assert "contradict" in tree_problem(after.spec, missing)
    assert "too many" in tree_problem(after.spec, arrays | {"tree2.leaf_starts": starts})


# What cannot be is one line.


def one_line(error: type[Exception], text: str, model: Model, *given: Any, **names: Any) -> None:
    with pytest.raises(error, match=text) as caught:
        model.extend(*given, **names)
    assert "\n" not in str(caught.value)


def test_bad_rows_and_models(before: Model, parts: Any) -> None:
    X, Y = parts[0]
    without = Y.tolil()
    without[:, 55] = 0
    one_line(InputError, "no label is new: the columns of Y are 50", before, X, Y[:, :OLD])
    one_line(InputError, "no label is new: the columns of Y are 7", before, X, Y[:, :7])
    one_line(InputError, "new label 55 has no row", before, X, without)
    one_line(InputError, "new label 50 has no row", before, X[:0], Y[:0])
    own = Y[:, [50]].toarray().ravel() > 0
    of_it = X[own], Y[own][:, :51]
    one_line(InputError, r"label 50 is in (\d+) of \1 rows, so it would", before, *of_it)
    one_line(InputError, "Y is missing", before, X)
    one_line(InputError, r"Y is \(399, 60\)", before, X, Y[:-1])
    one_line(InputError, "X has 79 features", before, X[:, :-1], Y)
    nan = X.copy()
    nan.data[3] = np.nan
    one_line(InputError, "NaN", before, nan, Y)
    network, trees = network_and_trees(generate(ROWS)[0])
    one_line(ModelError, "networks take no new labels", network, *widened(parts[0], 1))
    mix = daskxml.mix([network, trees], weights=(0.5, 0.5))
    one_line(ModelError, "mixtures take no new labels", mix, *widened(parts[0], 1))


def test_a_node_holds_no_more_labels_than_can_be_stored(
    before: Model, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extending, "MAX_CHILDREN", 4)
    one_line(InputError, "train a new model", before, *parts[0])


def test_names_of_new_labels(before: Model, parts: Any) -> None:
    words = tuple(f"word {label}" for label in range(ALL))
    header = replace(before.header, label_names=words[:OLD])
    named = Model(header, before.parameters, before.label_counts, threads=1)
    more = named.extend(*parts[0], names=words[OLD:])
    assert more.header.label_names == words
    one_line(ConfigError, "50 label names for 60 labels", named, *parts[0])
    one_line(ConfigError, "51 label names", named, *parts[0], names=["a"])
    clash = ["word 3", *words[OLD + 1 :]]
    one_line(ConfigError, "label 50 has the name 'word 3' of label 3", named, *parts[0],
             names=clash)  # fmt: skip
    one_line(ConfigError, "labels have no names: extend it without", before, *parts[0],
             names=words[OLD:])  # fmt: skip


def test_the_command_writes_a_model(
    before: Model, after: Model, parts: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(rows: Any, header: str = "") -> str:
        X, Y = rows
        texts = [
            ",".join(map(str, Y[row].indices))
            + "".join(f" {i}:{v}" for i, v in zip(X[row].indices, X[row].data, strict=True))
            for row in range(X.shape[0])
        ]
        return header + "\n".join(texts) + "\n"

    model, out = str(tmp_path / "model"), str(tmp_path / "out")
    before.save(model)
    for name, header in (("plain", ""), ("xml", "400 80 60\n")):
        (tmp_path / name).write_text(lines(parts[0], header))
        assert main(["extend", model, str(tmp_path / name), "--out", f"{out}-{name}"]) == 0
        told = capsys.readouterr().out
        assert told == f"wrote {out}-{name} with 10 new labels, fitted to 400 rows\n"
        found = daskxml.load(f"{out}-{name}").predict_top_k(parts[1][0], 3)[0]
        assert (found == after.predict_top_k(parts[1][0], 3)[0]).mean() > 0.99  # of rounded texts
    (tmp_path / "known").write_text(lines((parts[0][0], parts[0][1][:, :OLD])))
    (tmp_path / "names").write_text("x\ny\n")
    for options, problem in (
        (["known"], "no label is new"),
        (["plain", "--label-names", str(tmp_path / "names")], "the model's labels have no names"),
        (["plain"], "holds a model already"),
    ):
        place = f"{out}-plain" if options == ["plain"] else out
        given = (tmp_path / options[0], *options[1:], "--out", place)
        assert problem in refusal(capsys, "extend", model, *given)
    assert not (tmp_path / "out").exists()
