"""A kind of model is one folder and one line: a small one does all that trained models do."""

import ast
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

import daskxml
from daskxml.core.errors import ModelError
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.models import kinds
from daskxml.models.store import ModelHeader
from harness.popular import PopularSpec, registered
from harness.small_models import network_and_trees

ROWS = SyntheticSpec(rows=200, test_rows=80, features=40, labels=12, seed=4)
OWN_ROOMS = [("models", room) for room in ("network", "trees", "mix")]
SHARES = "table0.shares"
PACKAGE = Path(daskxml.__file__).parent


@pytest.fixture
def popular():
    """A model of a kind that is registered for the test alone."""
    labels = to_scipy(generate(ROWS)[0].labels)
    counts = np.asarray(labels.sum(axis=0), np.int64).ravel()
    header = ModelHeader(spec=PopularSpec(features=40, labels=12), training_rows=200)
    shares = (counts / 200).astype(np.float32)
    with registered():
        yield daskxml.Model(header, {SHARES: shares}, counts, threads=1)


def test_a_new_kind_is_stored_ranks_and_is_made_smaller(popular, tmp_path):
    test = generate(ROWS)[1]
    popular.save(tmp_path / "model")
    loaded = daskxml.load(tmp_path / "model")
    assert repr(loaded) == "<daskxml.Model popular>"
    ids, scores = loaded.predict_top_k(test, 3)
    assert (ids == ids[0]).all()
    assert (scores[0] == np.sort(popular.parameters[SHARES])[::-1][:3]).all()
    assert loaded.evaluate(test) == popular.evaluate(test)
    assert loaded.calibrate(test).header.decisions is not None
    drop = float(np.median(popular.parameters[SHARES]))
    assert (loaded.compress(drop=drop).parameters[SHARES] == 0).any()
    np.testing.assert_allclose(expit(loaded.logits(test))[0], popular.parameters[SHARES])


@pytest.mark.parametrize(("name", "message"), [
    ("tree", "is called 'trees' now"),
    ("mlp", "is called 'network' now"),
    ("mixture", "train two runs or more, then `daskxml mix"),
    ("mix", "train two runs or more, then `daskxml mix"),
    ("forest", "must be one of 'network', 'trees'"),
    (["trees"], "must be one of 'network', 'trees'"),
])  # fmt: skip
def test_names_of_kinds_that_run_files_cannot_have(name, message):
    with pytest.raises(daskxml.ConfigError, match=message):
        kinds.trained_kind(name)


def test_no_other_room_asks_for_a_kind():
    """No type of a description or a ranker is tested for, and no kind is compared."""
    names = {"ModelSpec", "TreeSpec", "MixtureSpec", "Forest", "NetworkRanker", "Mixture"}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[:2] in OWN_ROOMS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                asked = ast.unparse(node.args[1]).replace("|", " ").split()
                if names & set(asked):
                    found.append(f"{path}:{node.lineno}")
            if isinstance(node, ast.Compare):
                sides = (node.left, *node.comparators)
                compared = {side.value for side in sides if isinstance(side, ast.Constant)}
                if compared & kinds.KINDS.keys() and "kind" in ast.unparse(node):
                    found.append(f"{path}:{node.lineno}")
    assert found == []


def test_only_the_list_of_kinds_imports_label_trees():
    """What trains, stores and evaluates them knows `FittedKind` alone."""
    others = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[:2] not in OWN_ROOMS
        and "daskxml.models.trees" in "".join(ast.unparse(node) for node in ast.walk(
            ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom))
    ]  # fmt: skip
    assert others == ["models/kinds.py"]


def test_a_new_kind_is_part_of_a_mixture(popular, tmp_path):
    train, test = generate(ROWS)
    network, _ = network_and_trees(train)
    mixture = daskxml.mix([network, popular], weights=(0.5, 0.5), out=tmp_path)
    again = daskxml.load(tmp_path)
    assert [part.kind for part in again.spec.parts] == [network.spec.kind, "popular"]
    for found, wanted in zip(
        again.predict_top_k(test, 5), mixture.predict_top_k(test, 5), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
    again.parameters["part1.more"] = again.parameters.pop(f"part1.{SHARES}")
    with pytest.raises(ModelError, match="part 1: shares are all that it has"):
        again.save(tmp_path / "other")
