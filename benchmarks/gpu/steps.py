"""Part (b): seconds and memory of a step, ours and PyTorch's with the same mathematics.

Both train a network of one hidden layer with softmax over all labels on the same rows, in plain SGD
or Adam, with TF32 products; and again with an output layer of 16 bits. PyTorch reads the rows
through an ``EmbeddingBag`` with a sparse gradient, which is its fastest way, and has its rows on
the GPU before the clock starts, as we have.

The least time that a step can take, from what it must move and multiply.

The output layer has ``L x H`` weights, the batch ``B`` rows with ``f`` features and ``l`` labels
each. In plain SGD with softmax a step must at least

- read the output weights for the logits, read them again for the gradient (the sums over all
  labels stand between the two: 343 MB of weights are in no cache), and write them once:
  ``3 x 4 L H`` bytes. Logits need never reach memory.
- read and write the first layer's rows of the features in use, at most ``B f`` of ``F``, and read
  them once before, in the forward pass: ``3 x 4 H`` bytes for each, if each is read once; and the
  entries themselves, 8 bytes each, in both passes; and the labels, 4 bytes each;
- multiply ``B x H`` by ``H x L`` three times (logits, gradient by the hidden layer, gradient by
  the weights): ``6 B H L`` operations. Multiplying the logits out a second time, so as to keep
  none of them, is a choice that is counted against us: it is not in the floor.

Amazon-670k, B = 1,024, H = 128: 1.03 GB for the output layer and about 0.12 GB for the first, 0.27
ms at 4.3 TB/s; 527 Gflop, 1.3 ms at 400 Tflop/s (TF32) and 0.67 ms at 790 (bf16). So the matrix
units decide, and a step of float32 is more than that because logits pass through memory or the
second-level cache: written twice and read five times where they are not kept, 28 bytes for each of
6.9e8, 4.5 ms if they all go to memory and less where a block of them (logits_budget) stays in the
cache. Kept, they pass six times: 24 bytes, 3.8 ms. A step of float16 with 64 or 128 units stores
none: it multiplies four times, 0.9 ms, and copies the weights, 0.1 ms.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from daskxml.core.arrays import Partition, Segment
from daskxml.models.network.spec import Layout, ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.worker.replica import Replica
from device import random_rows

FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A data set's sizes: columns, and stored entries of a typical row."""

    name: str
    features: int
    labels: int
    row_features: int
    row_labels: int
    hidden: int = 128


SHAPES = (
    Shape(name="amazon-670k", features=135_909, labels=670_091, row_features=75, row_labels=5),
    Shape(name="delicious-200k", features=782_585, labels=205_443, row_features=301, row_labels=75),
    Shape(name="bibtex", features=1836, labels=159, row_features=69, row_labels=2),
    Shape(name="delicious", features=500, labels=983, row_features=18, row_labels=19),
)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What a step must move and multiply."""

    moved_bytes: float
    operations: float

    def least_s(self, bytes_s: float, operations_s: float) -> float:
        """The larger of the two times.

        Examples
        --------
        >>> Floor(moved_bytes=4e9, operations=1e12).least_s(4e12, 4e14)
        0.0025
        """
        return max(self.moved_bytes / bytes_s, self.operations / operations_s)


def floor_of(shape: Shape, batch_rows: int, moments: int = 0) -> Floor:
    """The floor of a step with softmax; see the head of this module.

    Parameters
    ----------
    batch_rows
        Rows of the batch.
    moments
        Arrays that the optimizer remembers, each read and written: 2 for Adam.

    Examples
    --------
    >>> floor = floor_of(SHAPES[0], 1024)
    >>> round(floor.moved_bytes / 1e9, 2), round(floor.operations / 1e9)
    (1.15, 527)
    """
    weights = shape.labels * shape.hidden
    entries = batch_rows * shape.row_features
    used = min(entries, shape.features)
    passes = 3 + 2 * moments
    moved = passes * FLOAT_BYTES * (weights + used * shape.hidden)
    moved += 2 * 8 * entries + FLOAT_BYTES * batch_rows * shape.row_labels
    first = 4.0 * entries * shape.hidden
    return Floor(moved_bytes=moved, operations=6.0 * batch_rows * weights + first)


BATCHES = 4  # of different rows, so that no cache holds a batch
LR = 0.05
ALIKE = 0.02  # the share by which losses may differ: products are rounded in other ways


@lru_cache(maxsize=1)
def batches_of(shape: Shape, batch_rows: int, seed: int) -> tuple[Partition, list[Any]]:
    """Rows, and the row numbers of each batch."""
    rng = np.random.default_rng(seed)
    part = random_rows(rng, BATCHES * batch_rows, shape.features, shape.labels,
                       shape.row_features, shape.row_labels)  # fmt: skip
    return part, np.split(rng.permutation(part.rows).astype(np.int64), BATCHES)


@lru_cache(maxsize=1)
def _start_of(spec: ModelSpec, seed: int) -> Any:
    return initial_parameters(spec, seed)


class OurSteps:
    """Steps of a replica; called with a number of them, it returns the last loss, and has waited.

    Parameters
    ----------
    optimizer
        Its name.
    budget_bytes
        For the logits of a batch.
    """

    def __init__(
        self, kernels: Any, shape: Shape, batch_rows: int, optimizer: str, budget_bytes: int,
        seed: int, output_dtype: str = "float32",
    ) -> None:  # fmt: skip
        spec = ModelSpec(features=shape.features, labels=shape.labels, hidden=(shape.hidden,))
        self._kernels, self._rows = kernels, batch_rows
        self._replica = Replica(
            spec, OptimizerConfig(name=optimizer), kernels, max_batch_rows=batch_rows,
            logits_budget_bytes=budget_bytes, output_dtype=output_dtype,
        )  # fmt: skip
        kernels.write(self._replica.flat, _start_of(spec, seed))
        part, chosen = batches_of(shape, batch_rows, seed)
        there = kernels.to_device(part)
        self._batches = [[Segment(there, kernels.to_device(rows))] for rows in chosen]

    def __call__(self, steps: int) -> float:
        """Step so many times."""
        results = [self._step(i) for i in range(steps)]
        return float(results[-1].loss_sum) / self._rows

    def queue_s(self, times: int = 5) -> float:
        """Median seconds of the host to queue one step for an idle device."""
        taken = []
        for _ in range(times):
            self(1)
            begun_s = time.perf_counter()
            self._step(1)
            taken.append(time.perf_counter() - begun_s)
        self(1)
        return sorted(taken)[times // 2]

    def queued(self) -> int:
        """How many launches, products, copies and fills a step is."""
        device = self._kernels._device
        self._kernels._device = counting = Counting(device)
        try:
            self._step(1)
        finally:
            self._kernels._device = device
        self(1)
        return counting.count

    def _step(self, number: int) -> Any:
        return self._replica.step(self._batches[number % BATCHES], LR, key=number)


class Counting:
    """A device that counts what is queued."""

    def __init__(self, device: Any) -> None:
        self._device, self.count = device, 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._device, name)
        if name not in ("launch", "gemm", "copy", "clear", "write", "replay"):
            return function

        def counted(*arguments: Any) -> None:
            self.count += 1
            function(*arguments)

        return counted


def torch_steps(
    torch: Any, device: str, shape: Shape, batch_rows: int, optimizer: str, compiles: bool,
    seed: int, narrows: bool = False,
) -> Callable[[int], float]:  # fmt: skip
    """The same with PyTorch; where it ``narrows``, with products and logits of bfloat16."""
    torch.backends.cuda.matmul.allow_tf32 = True
    spec = ModelSpec(features=shape.features, labels=shape.labels, hidden=(shape.hidden,))
    named = Layout(spec).views(_start_of(spec, seed))
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

    if compiles:
        torch._dynamo.reset()  # else it gives up after a few shapes, and goes on uncompiled
    dense_loss = torch.compile(loss_of) if compiles else loss_of

    def run(steps: int) -> float:
        for i in range(steps):
            indices, offsets, values, *targets = batches[i % BATCHES]
            hidden = torch.nn.functional.embedding_bag(
                indices, first, offsets, mode="sum", sparse=True, per_sample_weights=values
            )
            with torch.autocast(device, torch.bfloat16, enabled=narrows):
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


def time_steps(run: Callable[[int], float], round_s: float) -> tuple[float, float]:
    """Median seconds of a step, of three rounds of ``round_s`` or more each; an early loss."""
    loss = run(BATCHES)  # compile, allocate; the same steps for whoever does them
    begun_s = time.perf_counter()
    run(2)
    steps = max(2, round(round_s / max(1e-6, (time.perf_counter() - begun_s) / 2)))
    rounds = []
    for _ in range(3):
        begun_s = time.perf_counter()
        run(steps)
        rounds.append((time.perf_counter() - begun_s) / steps)
    return sorted(rounds)[1], loss


def measure_shape(
    gpu: Any, case: tuple[Shape, int, str], budgets: Sequence[int], ceilings: dict[str, float],
    seed: int, round_s: float,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield rows of the table: ours for every budget of logits, then PyTorch eager and compiled.

    Parameters
    ----------
    gpu
        See `gpu.Gpu`.
    case
        Shape, rows of a batch, and optimizer.
    budgets
        Bytes for the matrix of logits.
    ceilings
        ``bytes_s`` and ``operations_s`` of this device, measured.
    """
    shape, batch_rows, optimizer = case
    first: dict[str, Any] = {}
    for who, make in contenders(gpu, case, budgets, seed).items():
        gpu.reset_memory()
        row = {"shape": shape.name, "batch": batch_rows, "optimizer": optimizer, "who": who}
        begun_s = time.perf_counter()
        try:
            row |= _measure(gpu, case, make(), ceilings, round_s)
        except Exception as error:  # one that fails is a row that says so
            row |= {"failed": f"{type(error).__name__}: {error}"[:200]}
        gc.collect()
        first = first or row
        yield row | agreement(row, first) | {"took_s": time.perf_counter() - begun_s}


def agreement(row: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """Whether a row's loss is that of the first; nothing where either has none.

    Examples
    --------
    >>> agreement({"loss": 2.01}, {"loss": 2.0}), agreement({"loss": 2.1}, {"loss": 2.0})
    ({'ok': True}, {'ok': False})
    >>> agreement({"failed": "RuntimeError: ..."}, {"loss": 2.0})
    {}
    """
    if "loss" not in row or "loss" not in first:
        return {}
    return {"ok": bool(abs(row["loss"] - first["loss"]) < ALIKE * first["loss"])}


def contenders(
    gpu: Any, case: tuple[Shape, int, str], budgets: Sequence[int], seed: int
) -> dict[str, Callable[[], Any]]:
    """What makes each contender's steps, by its name."""
    mib = 1 << 20
    found: dict[str, Callable[[], Any]] = {
        f"ours, logits in {budget / mib:,.0f} MiB": partial(_ours, gpu, case, budget, seed)
        for budget in budgets
    }
    found["ours, float16"] = partial(_ours, gpu, case, 64 * mib, seed, "float16")  # to rank
    if gpu.torch is not None:
        for compiles in gpu.compiles:
            takes_long = compiles and case[1:] != (1024, "sgd")  # so only once for a shape
            for narrows in (False,) if takes_long else (False, True):
                name = "torch compiled" if compiles else "torch eager"
                name += ", autocast bfloat16" * narrows
                found[name] = partial(
                    torch_steps, gpu.torch, gpu.torch_device, *case, compiles, seed, narrows
                )
    return found


def _ours(gpu: Any, case: tuple[Shape, int, str], *settings: Any) -> OurSteps:
    return OurSteps(gpu.kernels(), *case, *settings)


def _measure(
    gpu: Any, case: tuple[Shape, int, str], run: Any, ceilings: dict[str, float], round_s: float
) -> dict[str, Any]:
    """Times, memory and, of ours, what is queued."""
    shape, batch_rows, optimizer = case
    floor = floor_of(shape, batch_rows, 2 if optimizer == "adam" else 0)
    least_s = floor.least_s(ceilings["bytes_s"], ceilings["operations_s"])
    step_s, loss = time_steps(run, round_s)
    is_ours = isinstance(run, OurSteps)
    row = {"step_ms": step_s * 1e3, "rows_s": batch_rows / step_s,
           "peak_GiB": gpu.peak_bytes(of_torch=not is_ours) / 2**30,
           "of_floor": least_s / step_s, "loss": loss}  # fmt: skip
    return row | ({"queued": run.queued(), "queue_ms": run.queue_s() * 1e3} if is_ours else {})
