"""Runs whose output layer is sampled: by replicas and pools, from the run file to the history."""

import numpy as np
import pytest

from daskxml.api.in_process import simulate
from daskxml.config import load_run_config
from daskxml.core.errors import ConfigError
from harness.records import flat

SAMPLING = {"active": 30, "l": 8, "k": 2, "rebuild_every": 300}


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_sampled_run_learns_and_tells_the_active_share(data, values, costs, loss):
    values["sampling"] = {"method": "random", **SAMPLING}
    values["model"]["loss"] = loss
    run = simulate(values, [1, 0.7], **data, **costs)
    for row in run.history:  # 30 of 60 labels, and more where a batch's rows have more
        assert 0.5 <= row["notes"]["active"] < 0.9
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert run.metrics["P@1"] > 0.1


@pytest.mark.parametrize("method", ["simhash", "dwta"])
def test_each_row_has_labels_of_its_own(data, values, costs, method):
    values["sampling"] = {"method": method, **SAMPLING, "active": 20}
    run = simulate(values, [1, 0.7], **data, **costs)
    for row in run.history:  # 20 of 60 labels; no row has as many of its own
        assert row["notes"]["active"] == pytest.approx(20 / 60)
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert run.metrics["P@1"] > 0.1


@pytest.mark.parametrize("method", ["simhash", "random"])
def test_stopped_and_resumed_it_is_the_same(data, values, costs, tmp_path, method):
    values["sampling"] = {"method": method, **SAMPLING}
    values["optimizer"] = {"name": "adam"}
    values["strategy"]["lr"] = 0.01
    whole = simulate(values, [1, 0.7], **data, **costs)
    simulate(values, [1, 0.7], **data, **costs, out=tmp_path, overrides={"training.megabatches": 4})
    resumed = simulate(
        tmp_path / "run.toml", [1, 0.7], **costs, resume=tmp_path,
        overrides={"training.megabatches": 6},
    )  # fmt: skip
    np.testing.assert_array_equal(flat(whole), flat(resumed))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"sampling": {"method": "tree"}},
            "removed: negatives by chance are as good; take 'random'",
        ),
        (
            {"sampling": {"sets": "row"}},
            "removed: 'random' draws labels for a batch, 'simh",
        ),
        ({"sampling": {"weighted": True}}, "removed: drawn labels count 1, which ranks better"),
        ({"optimizer": {"clip_norm": 1.0}}, "needs an optimizer that changes some rows alone"),
        ({"optimizer": {"name": "lamb"}}, "needs an optimizer that changes some rows alone"),
        ({"strategy": {"name": "mirrored"}}, "needs a strategy that leases batches"),
        ({"cluster": {"device": "cuda"}}, "needs a CPU"),
    ],
)
def test_what_does_not_go_with_sampling_is_refused(tables, message):
    tables = {"training": {"epochs": 1}, **tables}
    tables["sampling"] = {"method": "random", **tables.get("sampling", {})}
    with pytest.raises(ConfigError) as caught:
        load_run_config(tables)
    assert message in str(caught.value)
    assert "[sampling]" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lamb_in_the_hidden_layers_goes_with_sampling():
    tables = {"training": {"epochs": 1}, "sampling": {"method": "random"}}
    tables["optimizer"] = {"name": "lamb", "output": "adam"}
    assert load_run_config(tables).sampling.is_on
