"""How labels become a tree: similar labels share nodes (balanced spherical 2-means).

A label's vector is the sum of its training rows, projected to a few dimensions and scaled to unit
length (the positive instance feature aggregation of Prabhu et al., "Parabel", WWW 2018, section 4).
Sums over rows are exact, so that they do not depend on how the rows are on workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Partition
from daskxml.data.order import derive_key
from daskxml.data.rows import slice_rows
from daskxml.kernels.cpu.tree import feature_sums, label_sums
from daskxml.models.trees.spec import TreeSpec, halved

DIMENSIONS = 100
_TREE = 4  # keeps the random choices of a run apart
_ROUNDS = 20  # of 2-means; most nodes are stable after 5 to 10
_ADDED = 4  # sums that a worker holds to add them up: each may have half a gigabyte


def random_projection(features: Array, seed: int) -> Array:
    """Return ``(len(features), DIMENSIONS)`` float32 of normal variables, the same for a seed.

    Examples
    --------
    >>> random_projection(np.array([5, 7, 100_000_000]), seed=1).shape
    (3, 100)
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal((len(features), DIMENSIONS), dtype=np.float32)


def projection_of(sums: Array) -> Array:
    """Return orthonormal directions ``(features, dimensions)`` float32 of `feature_sums`.

    A step of the power method, towards the directions in which labels differ most. They are found
    from the sums' products with each other, a twentieth of the work of a QR
    decomposition; directions with less than 1e-12 of the largest variance are left out.

    Examples
    --------
    >>> found = projection_of(np.array([[3.0, 1.0], [0.0, 2.0], [0.0, 0.0]]))
    >>> np.abs(found.T @ found).round(5)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    variances, directions = np.linalg.eigh(sums.T @ sums)
    is_used = variances > 1e-12 * max(float(variances[-1]), 1e-300)
    scales = np.where(is_used, 1.0 / np.sqrt(np.where(is_used, variances, 1.0)), 0.0)
    return (sums @ (directions * scales)).astype(np.float32)


def label_vectors(sums: Array) -> Array:
    """Scale label sums to unit length, ``(labels, dimensions)`` float32; zero stays zero.

    Examples
    --------
    >>> label_vectors(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return (sums / np.where(norms > 0.0, norms, 1.0)).astype(np.float32)


Block = tuple[Any, int, int]  # of a partition or what stands for it: from this row to that one


def call(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function here; where it is to run elsewhere, its ``name`` is unique in a run."""
    return function(*args)


def find_label_vectors(
    blocks: Sequence[Block], spec: TreeSpec, seed: int, submit: Callable[..., Any] = call
) -> Any:
    """Return a vector of unit length for each label, ``(labels, dimensions)`` float32.

    Sums over blocks are exact, so that the vectors are the same however rows are cut. Parameters
    are like these of `call` where ``submit`` returns what stands for a result. Where few of the
    features occur, as of hashed words, the others take no memory.
    """
    found = [submit(f"features-of-{i}", _features_of, *block) for i, block in enumerate(blocks)]
    features = submit("features", counted_features, found, spec.features)

    def summed(name: str, function: Callable[..., Any], operand: Any) -> Any:
        def total(itself: Callable[..., Any], first: int, stop: int) -> Any:
            """Sum over some blocks; they are submitted depth first, so that few sums wait.

            A function that refers to itself by name would keep the rows until a collection.
            """
            if stop - first == 1:
                rows = (*blocks[first], features)
                return submit(f"{name}-{first}", _of_rows, function, *rows, operand)
            cuts = sorted({first + (stop - first) * i // _ADDED for i in range(_ADDED + 1)})
            sums = [itself(itself, *cut) for cut in itertools.pairwise(cuts)]
            return submit(f"{name}-{first}-{stop}", _add_up, sums)

        return total(total, 0, len(blocks))

    projection = submit("random", random_projection, features, seed)
    vectors = submit("vectors-0", label_vectors, summed("first-labels", label_sums, projection))
    sums = summed("sums-of-features", feature_sums, vectors)
    projection = submit("projection", projection_of, sums)
    return submit("vectors", label_vectors, summed("labels", label_sums, projection))


def _of_rows(
    function: Callable[[Partition, Array], Array], part: Partition, start: int, stop: int,
    features: Array, operand: Array,
) -> Array:  # fmt: skip
    """Apply a function to rows of which only these features are columns."""
    rows = slice_rows(part, start, stop)
    x = rows.features
    if len(features) < x.columns:
        place = np.empty(x.columns, np.int32)
        place[features] = np.arange(len(features), dtype=np.int32)
        x = replace(x, indices=place[x.indices], columns=len(features))
    return function(replace(rows, features=x), operand)


def _features_of(part: Partition, start: int, stop: int) -> Array:
    return _distinct([slice_rows(part, start, stop).features.indices])


def _distinct(arrays: Sequence[Array]) -> Array:
    occurs = np.zeros(1 + max(int(array.max(initial=-1)) for array in arrays), bool)
    for array in arrays:
        occurs[array] = True
    return np.flatnonzero(occurs).astype(np.int32)


def counted_features(found: Sequence[Array], features: int) -> Array:
    """Return those that occur, ascending int32, if they are less than half; else all ``features``.

    Examples
    --------
    >>> counted_features([np.array([4, 0]), np.array([4])], 5), counted_features([np.arange(3)], 5)
    (array([0, 4], dtype=int32), array([0, 1, 2, 3, 4], dtype=int32))
    """
    occurring = _distinct(found)
    are_few = 2 * len(occurring) < features
    return occurring if are_few else np.arange(features, dtype=np.int32)


def _add_up(sums: Sequence[Array]) -> Array:
    total = sums[0].copy()
    for array in sums[1:]:
        total += array
    return total


def order_of_tree(vectors: Array, spec: TreeSpec, seed: int, tree: int) -> Array:
    """Return the labels in the order of a tree's leaves; ``seed`` is the run's."""
    return order_labels(vectors, spec, derive_key(seed, _TREE, tree))


def order_labels(vectors: Array, spec: TreeSpec, seed: int) -> Array:
    """Return the labels in the order of a tree's leaves, ``(labels,)`` int32.

    Every node of `daskxml.models.trees.spec.TreeShape` is cut in halves, again and again, so that
    the labels of a half are similar.

    Examples
    --------
    >>> vectors = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], np.float32)
    >>> order = order_labels(vectors, TreeSpec(features=2, labels=4, leaf_labels=2), seed=1)
    >>> sorted(map(sorted, (order[:2].tolist(), order[2:].tolist())))
    [[0, 2], [1, 3]]
    """
    order = np.arange(spec.labels)
    bounds = np.array([0, spec.labels])
    for depth in range(sum(spec.level_bits)):
        cut = halved(bounds)
        for node in range(bounds.shape[0] - 1):
            start, middle, stop = cut[2 * node : 2 * node + 3]
            if stop - start > 1:
                generator = np.random.default_rng([abs(seed), depth, node])
                is_left = cut_in_two(vectors[order[start:stop]], middle - start, generator)
                labels = order[start:stop]
                order[start:stop] = np.concatenate([labels[is_left], labels[~is_left]])
        bounds = cut
    return order.astype(np.int32)


def cut_in_two(vectors: Array, left: int, generator: np.random.Generator) -> Array:
    """Balanced spherical 2-means: return which ``left`` of the vectors are in the first half.

    Examples
    --------
    >>> vectors = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], np.float32)
    >>> first = cut_in_two(vectors, 2, np.random.default_rng(1))
    >>> bool(first[0] == first[2] and first[1] == first[3] and first[0] != first[1])
    True
    """
    count = vectors.shape[0]
    first, second = generator.choice(count, 2, replace=False)
    direction = vectors[first] - vectors[second]
    is_left, total = np.zeros(count, bool), vectors.sum(axis=0)
    half = np.zeros_like(total)
    for _ in range(_ROUNDS):
        before, is_left = is_left, _largest(vectors @ direction, left)
        if (is_left == before).all():
            break
        half += vectors[is_left & ~before].sum(axis=0) - vectors[before & ~is_left].sum(axis=0)
        direction = _unit(half) - _unit(total - half)
    return is_left


def _largest(values: Array, count: int) -> Array:
    """Return which are the ``count`` largest values, of equal ones the first."""
    bound = np.partition(values, values.shape[0] - count)[values.shape[0] - count]
    is_largest: Array = values > bound
    is_largest[np.flatnonzero(values == bound)[: count - int(is_largest.sum())]] = True
    return is_largest


def _unit(vector: Array) -> Array:
    """A vector scaled to unit length."""
    return vector / max(float(np.linalg.norm(vector)), 1e-9)
