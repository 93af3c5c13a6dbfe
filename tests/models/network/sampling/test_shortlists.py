"""The labels that trees rank first for each row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from daskxml.core.arrays import Csr, Segment
from daskxml.data.rows import unit_rows
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import get_kernels
from daskxml.models.batch import with_offsets
from daskxml.models.network.sampling import SamplingConfig
from daskxml.models.network.sampling.shortlists import Shortlists
from daskxml.models.network.spec import ModelSpec
from daskxml.models.store import ModelHeader, write_model
from daskxml.models.trees.forest import Forest, assemble_tree
from daskxml.models.trees.nodes import TreeRows, fit_blocks, plan_pieces
from daskxml.models.trees.search import prepare_trees
from daskxml.models.trees.shape import TreeShape
from daskxml.models.trees.spec import TreeSpec

FEATURES, LABELS = 50, 200
CONFIG = SamplingConfig(method="tree", model="somewhere", shortlist=9)


def test_a_row_has_the_labels_that_the_trees_rank_first(tmp_path: Path) -> None:
    """Also on rows of another length, and in a later epoch from what was kept."""
    part, _ = generate(
        SyntheticSpec(rows=400, test_rows=10, features=FEATURES, labels=LABELS, seed=3)
    )
    unit_rows(part.features)
    kernels, counts = get_kernels("cpu", 1), np.bincount(part.labels.indices, minlength=LABELS)
    spec = TreeSpec(features=FEATURES, labels=LABELS, leaf_labels=20, beam=2)
    spec, orders = prepare_trees([part], counts, spec, 1, 0)
    shape, rows = TreeShape.of(spec), TreeRows(kernels, part, orders[0])
    (plan,) = plan_pieces(shape, counts[orders[0]], part.rows, 1)
    blocks = list(zip(plan, fit_blocks(rows, spec, shape, plan, 0, 0), strict=True))
    found = assemble_tree(orders[0], shape, blocks)
    arrays = {f"tree0.{name}": array for name, array in found.items()}
    write_model(tmp_path, ModelHeader(spec=spec, training_rows=400), arrays, counts)

    x = part.features
    assert x.data is not None
    longer = replace(part, features=Csr(x.indptr, x.indices, 3 * x.data, x.columns))
    numbers = np.array([7, 3, 7, 250])
    batch = list(with_offsets([Segment(longer, numbers[:3]), Segment(longer, numbers[3:])]))
    network, none = ModelSpec(features=FEATURES, labels=LABELS), np.empty((4, 0), np.float32)
    shortlists = Shortlists.of(replace(CONFIG, model=str(tmp_path)), network, kernels)
    expected, _ = Forest(spec, arrays, kernels).top_k([Segment(part, numbers)], 9)
    for _ in range(2):
        lookup = shortlists.lookup(kernels, none, batch)
        lists = np.split(lookup.members[0], lookup.starts[0, 1:-1])
        assert [row.tolist() for row in lists] == [row[row >= 0].tolist() for row in expected]
        shortlists._forest = Forest(spec, {}, kernels)  # which ranks nothing any more
    votes = np.empty((1, LABELS), np.int32)
    shortlists.vote(kernels, none, batch, votes)
    assert votes[0].sum() == (expected >= 0).sum()
