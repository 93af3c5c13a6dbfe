"""A kind of model that only tests know is trained, resumed, stored and ranks like any other."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import daskxml
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from harness.clusters import local_client
from harness.popular import registered
from harness.records import check_trees

ROWS = SyntheticSpec(rows=200, test_rows=80, features=40, labels=12, seed=4)
VALUES: dict[str, Any] = {"model": {"kind": "popular"}, "training": {"epochs": 1}}


@pytest.fixture(autouse=True)
def _popular() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(scope="module")
def parts() -> list[Any]:
    return [daskxml.Matrices(to_scipy(p.features), to_scipy(p.labels)) for p in generate(ROWS)]


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Client]:
    with local_client(2, processes=False) as client:
        yield client


def check(run: daskxml.Run, parts: list[Any]) -> None:
    """Check a run's model against counts, and its record."""
    counts = np.asarray(parts[0].Y.sum(axis=0)).ravel()
    shares = (counts / parts[0].Y.shape[0]).astype(np.float32)
    np.testing.assert_array_equal(run.model.parameters["table0.shares"], shares)
    ids, scores = run.model.predict_top_k(parts[1].X, 3)
    best = np.argsort(-shares, kind="stable")[:3]
    assert (ids == best).all()
    np.testing.assert_array_equal(scores, np.tile(shares[best], (len(ids), 1)))
    assert run.metrics["P@1"] == pytest.approx(parts[1].Y[:, best[0]].mean())
    assert (run.reason, len(run.history)) == ("epochs", 1)
    check_trees(run.history)


def test_a_new_kind_is_trained_here_and_goes_on(parts: list[Any], tmp_path: Any) -> None:
    given = {"train": parts[0], "test": parts[1], "workers": 0}
    run = daskxml.train(VALUES, **given, out=tmp_path / "run")
    check(run, parts)
    assert repr(run.model) == "<daskxml.Model popular>"
    check(daskxml.train(VALUES, **given, resume=tmp_path / "run"), parts)
    loaded = daskxml.load(tmp_path / "run")
    assert loaded.evaluate(parts[1].X, parts[1].Y) == run.metrics
    assert daskxml.verify(tmp_path / "run").agrees


def test_a_new_kind_is_trained_in_virtual_time(parts: list[Any]) -> None:
    run = daskxml.simulate(VALUES, [1, 0.5], train=parts[0], test=parts[1])
    check(run, parts)
    assert [len(each["pieces"]) for each in run.history[0]["workers"].values()] != [0, 4]


@pytest.mark.parametrize("stored", [False, True])
def test_a_new_kind_is_trained_on_a_cluster(
    parts: list[Any], two_workers: Client, tmp_path: Any, stored: bool
) -> None:
    out = tmp_path / "run" if stored else None
    given = {"train": parts[0], "test": parts[1], "client": two_workers}
    run = daskxml.train(VALUES, **given, out=out)
    check(run, parts)
    assert sum(len(each["pieces"]) for each in run.history[0]["workers"].values()) == 4


def test_what_has_no_use_in_a_run_of_it_is_refused() -> None:
    for section, key, value, why in (
        ("training", "epochs", 2, "rows are counted once"),
        ("training", "megabatches", 2, "popular labels have none"),
        ("strategy", "name", "elastic", "is for networks"),
        ("cluster", "pools", 1, "kind = 'popular' takes no pools"),
        ("model", "hidden", [4], "unknown key 'hidden'"),
    ):
        with pytest.raises(daskxml.ConfigError, match=why):
            daskxml.simulate(VALUES | {section: {**VALUES.get(section, {}), key: value}}, [1])
