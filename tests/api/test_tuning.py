"""The documented way to tune: Optuna's trials side by side on a cluster, pruned and resumed."""

import runpy
from pathlib import Path
from typing import Any

import optuna
import pytest
from distributed import Client
from optuna.trial import TrialState

import daskxml
from daskxml.records.run_dir import read_history

EXAMPLE = Path(__file__).parents[2] / "docs/examples/tuning.py"


@pytest.fixture
def example(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The example, with a short run file."""
    names = runpy.run_path(str(EXAMPLE))
    short = {**values, "training": {"megabatches": 4}, "checkpoint": {"every": 1}}
    names["tune"].__globals__["RUN_FILE"] = short
    return names


@pytest.mark.slow
def test_trials_share_a_cluster_and_resume_in_another_process(
    client: Client, example: dict[str, Any], data: dict[str, Path], tmp_path: Path
) -> None:
    study = example["open_study"](tmp_path)
    poor = {"strategy.lr": 0.01, "strategy.batch_max": 128, "optimizer.name": "sgd"}
    for lr in (2.0, 1.5, 1.0, 0.01):
        study.enqueue_trial({**poor, "strategy.lr": lr})
    study = example["tune"](data["train"], tmp_path, client, trials=4)
    ends = {trial.number: trial.state for trial in study.trials}
    assert set(ends.values()) <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert ends[3] is TrialState.PRUNED
    for trial in study.trials:
        out = Path(trial.user_attrs["out"])
        rows = read_history(out / "history.jsonl")
        assert (len(rows) == 4) == (trial.state is TrialState.COMPLETE)
        assert trial.intermediate_values == {
            row["megabatch"]: row["metrics"]["P@1"] for row in rows
        }
    assert daskxml.load(study.best_trial.user_attrs["out"]).header.spec.labels > 0
    assert daskxml.runs(client) == []

    # A process that was killed leaves a trial under way, with its last checkpoint.
    left = study.ask()
    chosen, out = example["settings"](left), tmp_path / "trial-0004"
    left.set_user_attr("out", str(out))
    with daskxml.Pipeline(client=client) as pipe:
        kept, held = pipe.split(pipe.read(data["train"]), share=0.1)
        daskxml.train(
            example["tune"].__globals__["RUN_FILE"],
            client=client, train=kept, test=held, out=out, overrides=chosen,
            on_megabatch=lambda row: daskxml.STOP if row["megabatch"] == 1 else None,
        )  # fmt: skip
    assert len(read_history(out / "history.jsonl")) < 4
    study = example["tune"](data["train"], tmp_path, client, trials=5, parallel=1)
    assert study.trials[4].state is TrialState.FAIL
    resumed = study.trials[5]
    assert resumed.params == chosen
    assert Path(resumed.user_attrs["out"]) == out
    assert min(resumed.intermediate_values) > 1  # not begun again
    assert len(study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED])) == 5


def test_a_trial_with_settings_that_do_not_fit_fails_alone(
    client: Client, example: dict[str, Any], data: dict[str, Path], tmp_path: Path
) -> None:
    study = example["open_study"](tmp_path)
    settings = example["settings"]
    example["tune"].__globals__["settings"] = lambda trial: {
        **settings(trial),
        "strategy.batch_min": 10**6 if trial.number == 0 else 1,
    }
    study = example["tune"](data["train"], tmp_path, client, trials=2)
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.FAIL, TrialState.COMPLETE]
    assert isinstance(study.best_trial, optuna.trial.FrozenTrial)
