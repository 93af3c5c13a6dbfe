"""Part (b): seconds and memory of a step, ours and PyTorch's with the same mathematics.

Both train a network of one hidden layer with softmax over all labels on the same rows, in plain SGD
or Adam, with TF32 products. PyTorch reads the rows through an ``EmbeddingBag`` with a sparse
gradient, which is its fastest way, and has its rows on the GPU before the clock starts, as we have.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from made_up import random_rows
from roofline import Shape, floor_of

from daskxml.model.parameters import Layout, initial_parameters
from daskxml.model.spec import ModelSpec
from daskxml.optim import OptimizerConfig
from daskxml.training.replica import Replica
from daskxml.types import Partition, Segment

BATCHES = 4  # of different rows, so that no cache holds a batch
LR = 0.05


def batches_of(shape: Shape, batch_rows: int, seed: int) -> tuple[Partition, list[Any]]:
    """Rows, and the row numbers of each batch."""
    rng = np.random.default_rng(seed)
    part = random_rows(rng, BATCHES * batch_rows, shape.features, shape.labels,
                       shape.row_features, shape.row_labels)  # fmt: skip
    return part, np.split(rng.permutation(part.rows).astype(np.int64), BATCHES)


def our_steps(kernels: Any, shape: Shape, batch_rows: int, optimizer: str, budget_bytes: int,
              seed: int, output_dtype: str = "float32") -> Callable[[int], float]:  # fmt: skip
    """Make what goes through so many steps and returns the last loss, which waits for them all."""
    spec = ModelSpec(features=shape.features, labels=shape.labels, hidden=(shape.hidden,))
    replica = Replica(spec, OptimizerConfig(name=optimizer), kernels, max_batch_rows=batch_rows,
                      logits_budget_bytes=budget_bytes, output_dtype=output_dtype)  # fmt: skip
    kernels.copy(replica.flat, kernels.to_device(initial_parameters(spec, seed)))
    part, chosen = batches_of(shape, batch_rows, seed)
    there = kernels.to_device(part)
    batches = [[Segment(there, kernels.to_device(rows))] for rows in chosen]

    def run(steps: int) -> float:
        results = [replica.step(batches[i % BATCHES], LR, key=i) for i in range(steps)]
        return results[-1].loss_sum / batch_rows

    return run


def torch_steps(torch: Any, device: str, shape: Shape, batch_rows: int, optimizer: str,
                compiles: bool, seed: int) -> Callable[[int], float]:  # fmt: skip
    """The same with PyTorch."""
    torch.backends.cuda.matmul.allow_tf32 = True
    spec = ModelSpec(features=shape.features, labels=shape.labels, hidden=(shape.hidden,))
    named = Layout(spec).views(initial_parameters(spec, seed))
    first, b1, weight, b2 = (
        torch.nn.Parameter(torch.tensor(named[name], device=device)) for name in named
    )
    part, chosen = batches_of(shape, batch_rows, seed)
    batches = [_torch_batch(torch, device, part, rows) for rows in chosen]
    dense = [b1, weight, b2]
    make = {"sgd": (torch.optim.SGD, torch.optim.SGD),
            "adam": (torch.optim.SparseAdam, torch.optim.Adam)}[optimizer]  # fmt: skip
    optimizers = [make[0]([first], lr=LR), make[1](dense, lr=LR)]

    def loss_of(hidden, b1, weight, b2, rows, labels, share):  # type: ignore[no-untyped-def]
        logits = torch.nn.functional.linear(torch.relu(hidden + b1), weight, b2)
        true = (logits[rows, labels] * share).sum()
        return (torch.logsumexp(logits, dim=1).sum() - true) / batch_rows

    dense_loss = torch.compile(loss_of) if compiles else loss_of

    def run(steps: int) -> float:
        for i in range(steps):
            indices, offsets, values, *targets = batches[i % BATCHES]
            hidden = torch.nn.functional.embedding_bag(
                indices, first, offsets, mode="sum", sparse=True, per_sample_weights=values
            )
            loss = dense_loss(hidden, *dense, *targets)
            loss.backward()
            for each in optimizers:
                each.step()
                each.zero_grad(set_to_none=True)
        return float(loss.detach())

    return run


def _torch_batch(torch: Any, device: str, part: Partition, rows: Any) -> list[Any]:
    """Indices, offsets and values of the features; rows, labels and shares of the targets."""
    x, y = part.features, part.labels
    spans = [slice(x.indptr[r], x.indptr[r + 1]) for r in rows]
    true = [y.indices[y.indptr[r] : y.indptr[r + 1]] for r in rows]
    counts = np.array([len(labels) for labels in true])
    arrays = (
        np.concatenate([x.indices[span] for span in spans]).astype(np.int64),
        np.append(0, np.cumsum([span.stop - span.start for span in spans]))[:-1],
        np.concatenate([x.data[span] for span in spans]),
        np.repeat(np.arange(len(rows)), counts),
        np.concatenate(true).astype(np.int64),
        np.repeat(1.0 / counts, counts).astype(np.float32),
    )
    return [torch.tensor(array, device=device) for array in arrays]


def time_steps(run: Callable[[int], float], least_s: float) -> tuple[float, float]:
    """Median seconds of a step over five rounds, each of ``least_s`` or more, and the last loss."""
    run(3)  # compile, allocate
    begun_s = time.perf_counter()
    run(2)
    steps = max(2, round(least_s / max(1e-6, (time.perf_counter() - begun_s) / 2)))
    rounds, loss = [], 0.0
    for _ in range(5):
        begun_s = time.perf_counter()
        loss = run(steps)
        rounds.append((time.perf_counter() - begun_s) / steps)
    return sorted(rounds)[2], loss


def _ours(open_kernels: Callable[[], Any], *settings: Any) -> Callable[[int], float]:
    return our_steps(open_kernels(), *settings)


def measure_shape(open_kernels: Callable[[], Any], memory: Any, torch: Any, shape: Shape,
                  batch_rows: int, optimizer: str, budgets: tuple[int, ...],
                  ceilings: dict[str, float], seed: int,
                  has_narrow: bool = True) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of the table: ours for every budget of logits, then PyTorch eager and compiled.

    Parameters
    ----------
    open_kernels
        Makes the device's kernels.
    memory
        Tells the peak: ``ours()`` and ``torch()`` in bytes, after ``reset()``.
    budgets
        Bytes for the matrix of logits.
    has_narrow
        Whether ours also runs with the output layer's weights in bfloat16.
    ceilings
        ``bytes_s`` and ``operations_s`` of this device, measured.
    """
    moments = 2 if optimizer == "adam" else 0
    least_s = floor_of(shape, batch_rows, moments).least_s(
        ceilings["bytes_s"], ceilings["operations_s"]
    )
    rows = []
    common = shape, batch_rows, optimizer
    contenders: list[tuple[str, Callable[[], Callable[[int], float]], str]] = [
        (f"ours, logits in {budget >> 20} MiB",
         partial(_ours, open_kernels, *common, budget, seed), "ours") for budget in budgets
    ]  # fmt: skip
    if has_narrow:
        narrow = partial(_ours, open_kernels, *common, budgets[0], seed, "bfloat16")
        contenders.append(("ours, bfloat16 output weights", narrow, "ours"))
    if torch is not None:
        contenders += [
            (f"torch {how}", partial(torch_steps, torch, "cuda", *common, compiles, seed), "torch")
            for how, compiles in (("eager", False), ("compiled", True))
        ]
    for who, make, kind in contenders:
        memory.reset()
        row: dict[str, Any] = {"shape": shape.name, "batch": batch_rows, "optimizer": optimizer,
                               "who": who}  # fmt: skip
        try:
            step_s, loss = time_steps(make(), 0.4)
            row |= {"step_ms": step_s * 1e3, "rows_s": batch_rows / step_s,
                    "peak_GiB": getattr(memory, kind)() / 2**30, "of_floor": least_s / step_s,
                    "loss": loss}  # fmt: skip
        except Exception as error:  # one that fails is a row that says so
            row["failed"] = f"{type(error).__name__}: {error}"[:200]
        rows.append(row)
        gc.collect()
    return rows
