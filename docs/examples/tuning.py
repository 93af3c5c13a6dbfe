"""Tune a run file with Optuna: trials side by side on one cluster, and poor ones ended early.

    python docs/examples/tuning.py train.txt.gz runs/tuning 30

The folder holds Optuna's storage and a directory for each trial. Run the command again after an
interruption, or with more trials: finished ones are kept, others resume from their checkpoints.
"""

import sys
from pathlib import Path

import optuna
from dask.distributed import Client
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

import daskxml
from daskxml.core.errors import TrainingError

METRIC = "P@1"
RUN_FILE = {"training": {"epochs": 6, "target_metric": METRIC}, "checkpoint": {"every": 1}}


def settings(trial: Trial) -> dict[str, object]:
    """Return the keys of the run file that are tuned, with the values of a trial."""
    return {
        "strategy.lr": trial.suggest_float("strategy.lr", 0.01, 2.0, log=True),
        "strategy.batch_max": trial.suggest_int("strategy.batch_max", 32, 128, step=32),
        "optimizer.name": trial.suggest_categorical("optimizer.name", ["sgd", "adam"]),
    }


def open_study(folder: Path) -> optuna.Study:
    """Open the study in a folder; trials that an earlier process left are queued again."""
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="tuning",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(folder / "optuna.log"))),
        direction="maximize",
        sampler=optuna.samplers.TPESampler(constant_liar=True),  # trials run side by side
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=2),
        load_if_exists=True,
    )
    for left in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(left.number, state=TrialState.FAIL)
        study.enqueue_trial(left.params, user_attrs=left.user_attrs)
    return study


def tune(
    source: str | Path, folder: Path, client: Client, trials: int, parallel: int = 2
) -> optuna.Study:
    """Train until so many trials are complete or pruned; each steps on all workers of a cluster."""
    study = open_study(folder)
    with daskxml.Pipeline(client=client) as pipe:  # all trials share the rows on the workers
        kept, held = pipe.split(pipe.read(source), share=0.1)

        def objective(trial: Trial) -> float:
            out = Path(trial.user_attrs.get("out", folder / f"trial-{trial.number:04d}"))
            trial.set_user_attr("out", str(out))

            def report(row: dict) -> None:
                if METRIC in row["metrics"]:
                    trial.report(row["metrics"][METRIC], row["megabatch"])
                    if trial.should_prune():
                        raise optuna.TrialPruned

            run = daskxml.train(
                RUN_FILE, client=client, train=kept, test=held, overrides=settings(trial),
                on_megabatch=report, raises=[optuna.TrialPruned],
                **{"resume" if (out / "run.toml").exists() else "out": out},
            )  # fmt: skip
            return run.metrics[METRIC]

        done = len(study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED]))
        failures = (daskxml.ConfigError, TrainingError)  # of a trial: the others go on
        study.optimize(objective, max(trials - done, 0), n_jobs=parallel, catch=failures)
    return study


if __name__ == "__main__":
    source, out, number = sys.argv[1:]
    with Client() as local:
        best = tune(source, Path(out), local, int(number)).best_trial
    print(best.value, best.params, best.user_attrs["out"])
