"""Real runs of every run file agree with their records; the simulator's are in `tests/records`."""

from pathlib import Path

import pytest
from distributed import Client

import daskxml
from daskxml.config import load_run_config, packaged_run_files

SMALL = {"model.hidden": [16], "strategy.batch_max": 32, "strategy.megabatch_batches": 12,
         "training.megabatches": 3, "training.epochs": 99.0, "checkpoint.every": 3,
         "cluster.pools": 0, "cluster.pool_threads": 0}  # fmt: skip
TREES = {"training.trees": 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(packaged_run_files()))
def test_a_real_run_of_every_run_file_agrees(
    client: Client, data: dict[str, Path], tmp_path: Path, name: str
) -> None:
    packaged = load_run_config(name)
    settings = dict(SMALL if packaged.has_strategy else TREES)
    for key in ("batch_min", "batch_initial"):  # they follow from batch_max
        if packaged.has_strategy and hasattr(packaged.strategy, key):
            settings[f"strategy.{key}"] = 0
    run = daskxml.train(name, client=client, out=tmp_path / "run", overrides=settings, **data)
    found = daskxml.verify(tmp_path / "run")
    assert [str(problem) for problem in found.disagreements] == []
    assert found.rows == run.history[-1]["rows"] > 0
    assert found.decisions >= found.megabatches == len(run.history)
