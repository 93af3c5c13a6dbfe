"""Runs of mixtures: part by part on one cluster, resumed where they were."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import daskxml
from daskxml.api.mixtures import begun
from daskxml.core.files import lock_folder
from daskxml.models.kinds import MixtureSpec

SMALL = """
[training]
epochs = 1
[checkpoint]
every = 1
"""
TREE = f'[model]\nkind = "tree"\n{SMALL}'
NETWORK = f"""
[model]
hidden = [8]
[strategy]
lr = 2.0
batch_max = 32
megabatch_batches = 5
{SMALL}"""


@pytest.fixture
def mixture(tmp_path: Path, data: dict[str, Path]) -> dict[str, Any]:
    """A run file with two parts beside it."""
    (tmp_path / "tree.toml").write_text(TREE, encoding="utf-8")
    (tmp_path / "network.toml").write_text(NETWORK, encoding="utf-8")
    parts = [str(tmp_path / f"{name}.toml") for name in ("tree", "network")]
    return {
        "model": {"kind": "mixture", "parts": parts},
        "data": {"train": [str(data["train"])], "validation": 0.2},
        "run": {"seed": 5},
    }


@pytest.mark.slow
def test_a_mixture_is_trained_and_goes_on_where_it_was(
    client: Client, mixture: dict[str, Any], data: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    run = daskxml.train(mixture, client=client, out=out)
    spec = run.model.spec
    assert isinstance(spec, MixtureSpec)
    assert [part.kind for part in spec.parts] == ["tree", "mlp"]
    assert sum(spec.weights) == pytest.approx(1)
    assert run.reason == "epochs"
    assert f"{run.metrics['P@1']:.4f}" in run._repr_html_()

    parts = [daskxml.load(out / name) for name in ("0-tree", "1-network")]
    again = daskxml.mix(parts, weights=spec.weights)
    assert run.model.parameters.keys() == again.parameters.keys()
    for name, array in run.model.parameters.items():
        np.testing.assert_array_equal(array, again.parameters[name])
    assert run.metrics["P@1"] >= max(part_metrics(out, "0-tree"), part_metrics(out, "1-network"))

    for killed in ("1-network", "1-network/checkpoints"):  # before it began; in its first steps
        shutil.rmtree(out / killed)
        (out / "model.json").unlink()
        trained: list[Any] = []
        resumed = daskxml.train(mixture, client=client, resume=out, on_megabatch=trained.append)
        network = (out / "1-network" / "history.jsonl").read_text().splitlines()
        assert len(trained) == len(network)  # and none of the tree's
        assert isinstance(resumed.model.spec, MixtureSpec)
        assert resumed.model.spec.parts == spec.parts
        for name, array in resumed.model.parameters.items():
            if name.startswith("part0."):  # what two workers merge depends on their speeds
                np.testing.assert_array_equal(array, again.parameters[name])
    assert len((out / "0-tree" / "history.jsonl").read_text().splitlines()) == 1


def test_a_part_that_another_process_trains_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    with (
        contextlib.closing(lock_folder(tmp_path, "busy")),
        pytest.raises(daskxml.ModelError, match="a run is under way"),
    ):
        begun(tmp_path)
    assert (tmp_path / "run.toml").exists()
    assert begun(tmp_path) == {"out": tmp_path}
    assert not tmp_path.exists()


def part_metrics(out: Path, part: str) -> float:
    history = daskxml.verify(out / part)
    assert history.disagreements == ()
    rows = (out / part / "history.jsonl").read_text().splitlines()
    return float(json.loads(rows[-1])["metrics"]["P@1"])


def test_a_callback_ends_a_mixture_with_the_part_under_way(
    client: Client, mixture: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    mixture["model"]["parts"].reverse()
    run = daskxml.train(mixture, client=client, out=out, on_megabatch=lambda row: daskxml.STOP)
    assert run.reason == "callback"
    assert not (out / "1-tree").exists()
    assert not (out / "model.json").exists()
    assert isinstance(daskxml.train(mixture, client=client, resume=out).model.spec, MixtureSpec)


def test_rows_in_memory_and_given_weights(client: Client, mixture: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    rows = daskxml.Matrices(rng.random((120, 20)), rng.random((120, 6)) > 0.7)
    mixture["data"] = {"validation": 0.2}
    assert daskxml.train(mixture, client=client, train=rows).metrics.keys() >= {"P@1", "P@5"}
    mixture["data"] = {}
    mixture["model"]["weights"] = [0.25, 0.75]
    run = daskxml.train(mixture, client=client, train=rows)
    assert isinstance(run.model.spec, MixtureSpec)
    assert run.model.spec.weights == (0.25, 0.75)
    assert run.metrics == {}


def test_what_a_mixture_cannot_do_is_one_line(
    client: Client, mixture: dict[str, Any], data: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(daskxml.ConfigError, match="is trained part by part"):
        daskxml.simulate(mixture, [1.0])
    with pytest.raises(daskxml.ConfigError, match="is trained part by part"):
        daskxml.launch(mixture, client=client)
    with pytest.raises(daskxml.ModelError, match="no run to resume here"):
        daskxml.train(mixture, client=client, resume=tmp_path)
    inner = tmp_path / "inner.toml"
    inner.write_text('[model]\nkind = "mixture"\n[data]\nvalidation = 0.1\n', encoding="utf-8")
    mixture["model"]["parts"][1] = str(inner)
    with pytest.raises(daskxml.ConfigError, match="is a mixture itself"):
        daskxml.train(mixture, client=client)
    mixture["model"]["parts"][1] = "no-such-file"
    with pytest.raises(daskxml.ConfigError, match="no-such-file"):
        daskxml.train(mixture, client=client, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()
