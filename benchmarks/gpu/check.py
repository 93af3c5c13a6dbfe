"""How fast are a GPU's steps beside PyTorch's, and does a replica learn what a CPU's does?

    python benchmarks/gpu/check.py

One data-centre GPU, under 8 minutes, and nothing but CuPy, NumPy, SciPy and PyTorch. Prints a
line and writes ``benchmarks/results/gpu_check.json`` again after each row. The exit status is 0
if every curve is right and all that step have the same loss, 1 if not, 2 without a GPU. Speed
decides nothing. Single kernels are compared with their twins by ``make test-cuda``.

Part (b) has a budget of 256 MiB for logits (``training.logits_budget``), and all of them, the
default. A step of plain SGD is captured as a CUDA graph; one of Adam queues about 33 operations and
9 for each block of labels. The table has how many are queued (``queued``), the host's time for it
(``queue_ms``) and the time until they are done (``step_ms``).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "tests"), str(HERE.parent), str(HERE)]

from daskxml.core.arrays import Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels
from daskxml.models.network.output import logits_stride
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.worker.replica import Replica
from device import Gpu, planted_rows
from harness.naive_kernels import NaiveKernels
from steps import FLOAT_BYTES, SHAPES, Shape, measure_shape

RUNS = (("sgd", "softmax", 3.0), ("adam", "softmax", 1.0), ("sgd", "sigmoid", 5.0))  # to this loss
LEFT_S = 410.0  # of the 8 minutes, after which no further shape is begun
BATCH_ROWS, RUN_ROWS = 64, 2048  # of the curves
BUDGETS = (256 << 20,)  # for logits, and all of them


def train_curve(
    kernels: Any, optimizer: str, loss: str, epochs: int, seed: int = 0,
    rows: int = RUN_ROWS, features: int = 600, labels: int = 200,
) -> list[float]:  # fmt: skip
    """The mean loss of every epoch, each row by the model of its time."""
    spec = ModelSpec(features=features, labels=labels, hidden=(32,), loss=loss)
    replica = Replica(spec, OptimizerConfig(name=optimizer), kernels, max_batch_rows=BATCH_ROWS)
    kernels.copy(replica.flat, kernels.to_device(initial_parameters(spec, seed)))
    part = kernels.to_device(planted_rows(seed, rows, features, labels))
    rates = {"sgd": 2.0, "adam": 0.005}
    curve = []
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(rows).astype(np.int64)
        results = [
            replica.step([Segment(part, kernels.to_device(chosen))], rates[optimizer], key=0)
            for chosen in np.split(order, rows // BATCH_ROWS)
        ]
        curve.append(sum(float(result.loss_sum) for result in results) / rows)
    return curve


def compare_curves(ours: list[float], cpu: list[float], goal: float) -> dict[str, Any]:
    """Whether two curves differ by less than 2 % of where they begin, and reach a loss.

    Examples
    --------
    >>> compare_curves([2.0, 1.0], [2.0, 1.01], goal=1.5)["ok"]
    True
    >>> compare_curves([2.0, 1.9], [2.0, 1.9], goal=1.5)["ok"]
    False
    """
    gap = max(abs(a - b) for a, b in zip(ours, cpu, strict=True)) / cpu[0]
    return {"first": ours[0], "last": ours[-1], "last_cpu": cpu[-1], "gap": gap, "goal": goal,
            "ok": bool(gap < 0.02 and ours[-1] < goal)}  # fmt: skip


Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is checked, and how much of it.

    Attributes
    ----------
    steps
        Shape, rows of a batch and optimizer of the steps that are timed.
    round_s
        Least seconds of each of three rounds of steps.
    runs
        Optimizer, loss and goal of the curves.
    epochs, curve
        Of every curve; sizes of its rows.
    left_s
        Seconds after which no further shape is begun.
    """

    steps: tuple[tuple[Shape, int, str], ...] = (
        (SHAPES[0], 1024, "sgd"), (SHAPES[0], 4096, "sgd"), (SHAPES[1], 1024, "sgd"),
        (SHAPES[1], 4096, "sgd"), (SHAPES[0], 1024, "adam"),
        (SHAPES[0], 1021, "sgd"),  # strategies choose any size, libraries like multiples of 8
        (SHAPES[2], 64, "sgd"), (SHAPES[3], 64, "sgd"),  # small: what the host takes to queue it
    )  # fmt: skip
    round_s: float = 0.3
    runs: tuple[tuple[str, str, float], ...] = RUNS
    epochs: int = 6
    curve: dict[str, int] = field(default_factory=dict)
    left_s: float = LEFT_S


def cpu_kernels() -> Any:
    """Numba's where that is installed, else plain NumPy."""
    try:
        return get_kernels("cpu", 1)
    except ImportError:
        return NaiveKernels()


def part_b(
    gpu: Any, work: Work, ceilings: dict[str, float], seed: int, begun_s: float
) -> Iterator[dict[str, Any]]:
    """Steps at every shape, with several budgets for logits."""
    kernels = gpu.kernels()
    for shape, batch_rows, optimizer in work.steps:
        if time.perf_counter() - begun_s > work.left_s:
            yield {"shape": shape.name, "batch": batch_rows, "optimizer": optimizer,
                   "who": "left out: no time"}  # fmt: skip
            continue
        whole_bytes = FLOAT_BYTES * shape.labels * logits_stride(kernels, batch_rows)
        budgets = [*(each for each in BUDGETS if each < whole_bytes), whole_bytes]
        case = (shape, batch_rows, optimizer)
        yield from measure_shape(gpu, case, budgets, ceilings, seed, work.round_s)


def part_c(kernels: Any, work: Work) -> Rows:
    """Curves of a replica on the device and on a CPU."""
    rows: Rows = []
    for optimizer, loss, goal in work.runs:
        ours, cpu = (
            train_curve(each, optimizer, loss, work.epochs, **work.curve)
            for each in (kernels, cpu_kernels())
        )
        rows.append({"run": f"one replica, {optimizer}, {loss}", **compare_curves(ours, cpu, goal)})
    return rows


def run_parts(gpu: Any, work: Work, parts: str, seed: int) -> Iterator[dict[str, Any]]:
    """Run the parts, print each row as it is done, and give what is known so far."""
    begun_s = time.perf_counter()
    found: dict[str, Any] = {"benchmark": "gpu_check", "seed": seed, "machine": gpu.describe()}

    def steps() -> Iterator[dict[str, Any]]:
        ceilings = found["ceilings"] = gpu.ceilings()
        show(ceilings)
        yield from part_b(gpu, work, ceilings, seed, begun_s)

    todo: dict[str, tuple[str, Callable[[], Iterable[dict[str, Any]]]]] = {
        "b": ("steps", steps),
        "c": ("training", lambda: part_c(gpu.kernels(), work)),
    }
    for part in parts:
        name, make = todo[part]
        rows: Rows = found.setdefault(name, [])
        for row in make():
            rows.append(row)
            show(row)
            found["took_s"] = time.perf_counter() - begun_s
            yield found


def show(row: dict[str, Any]) -> None:
    """Print a row at once: the run may be cut off.

    Examples
    --------
    >>> show({"run": "one replica", "gap": 0.12345678, "ok": True})
    run one replica  gap 0.1235  ok True
    """
    texts = (
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
    )
    print("  ".join(texts), flush=True)


def status_of(found: dict[str, Any]) -> int:
    """0 if every curve is right, and all steps have the same loss; else 1."""
    parts = ("training", "steps")
    checked = [row for part in parts for row in found.get(part, [])]
    return 0 if all(row.get("ok", True) for row in checked) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--parts", default="cb", help="which of b and c, in this order")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the operands")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "gpu_check.json")
    asked = parser.parse_args()
    try:
        get_kernels("cuda", 1).close()
    except ConfigError as error:
        print(f"no check: {error}", file=sys.stderr)
        return 2
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    status = 0
    for found in run_parts(Gpu(), Work(), asked.parts, asked.seed):
        asked.out.write_text(json.dumps(found, indent=2) + "\n")
        status = status_of(found)
    return status


if __name__ == "__main__":
    sys.exit(main())
