"""The runs of Adasum's figures 1 and 6: a schedule that one worker barely reaches its best with.

The paper (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021, section 5.4)
trains LeNet-5 on MNIST with momentum SGD, batches of 32 rows, and a learning rate that rises and
falls linearly from zero to zero, in as few epochs as one worker needs. Here the set is delicious
(12,920 rows: 404 steps an epoch on one worker, 13 on 32; MNIST has 1,875 and 58), the model has 128
hidden units with ReLU and a softmax, and the number of epochs and the peak learning rate are those
that ``adasum_fig06.py`` finds for one worker. All workers are equally fast; they combine what one
step of momentum SGD changed, by Adasum's tree or by the sum.
"""

from __future__ import annotations

from typing import Any

from study import Job

DATA_NAME = "delicious"
BATCH_ROWS = 32
MEGABATCH_BATCHES = 128  # four steps of 32 workers
WARMUP = 0.17  # of all epochs, as in the paper
SEEDS = (0, 1)
NEVER_S = 1e6  # the epochs end a run, not the time


def schedule_of(epochs: float) -> tuple[tuple[str, Any], ...]:
    """Return the settings of momentum SGD whose rate rises and falls linearly in so many epochs."""
    return (
        ("optimizer.name", "momentum"),
        ("schedule.name", "linear"),
        ("schedule.warmup_epochs", WARMUP * epochs),
        ("training.epochs", epochs),
    )


def scheduled_job(
    workers: int, rule: str, lr: float, epochs: float, *, validates: bool = False, seed: int = 0
) -> Job:
    """Return a run of so many epochs, scored now and then and at its end."""
    return Job(
        data=DATA_NAME, algorithm="adasum", lr=lr, speeds=(1.0,) * workers, validates=validates,
        train_s=NEVER_S, every=4,
        overrides=(
            ("run.seed", seed),
            ("strategy.batch_max", BATCH_ROWS),
            ("strategy.megabatch_batches", MEGABATCH_BATCHES),
            ("strategy.local_steps", 1),
            ("combine.rule", rule),
            *schedule_of(epochs),
        ),
    )  # fmt: skip


def gradient_job(data: str, workers: int, lr: float, epochs: float) -> Job:
    """Return a run that combines gradients by Adasum, with a row of history for every step."""
    return Job(
        data=data, algorithm="adasum-gradients", lr=lr, speeds=(1.0,) * workers,
        train_s=NEVER_S, every=1000,
        overrides=(
            ("strategy.batch_max", BATCH_ROWS),
            ("strategy.megabatch_batches", workers),
            ("strategy.divide", False),
            *schedule_of(epochs),
        ),
    )  # fmt: skip
