"""Simulated runs on disk: one whose workers come and go, and one of another strategy."""

import shutil

import pytest

from daskxml.api.in_process import simulate
from daskxml.local import Arrival, CostModel, Loss
from harness.small_data import data as data
from harness.small_data import small_run

VALUES = small_run(6, run={"name": "first"}, evaluation={"every": 2}, checkpoint={"every": 2})
COST = CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=1e-6)


@pytest.fixture(scope="session")
def simulated(data, tmp_path_factory):
    """A folder with the runs ``changing`` and ``elastic``."""
    folder = tmp_path_factory.mktemp("reports")
    changes = [Loss(0.1, "1"), Arrival(0.15, "2")]
    perturbed = {"strategy.perturbation_threshold": 10.0}
    given = {**data, "cost": COST}
    out = folder / "changing"
    simulate(VALUES, [1, 0.6], **given, overrides=perturbed, changes=changes, out=out)
    elastic = VALUES | {"strategy": VALUES["strategy"] | {"name": "elastic"}}
    simulate(elastic, [1, 0.6], **given, out=folder / "elastic")
    return folder


@pytest.fixture
def run_dir(simulated, tmp_path):
    """A copy of the run ``changing`` that a test may change."""
    return shutil.copytree(simulated / "changing", tmp_path / "run")
