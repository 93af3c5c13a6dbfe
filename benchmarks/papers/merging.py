"""Tree and ring all-reduce in one and several streams, on the virtual clock; needs no data.

    python benchmarks/papers/merging.py

Section 4 of Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep Learning on
Heterogeneous Multi-GPU Servers", 2021: a model is cut into as many partitions as there are streams,
and each is summed by a stream of its own, which starts at another GPU. In the ring a partition goes
from GPU to GPU, is added to on its way, and goes around once more as the sum; the tree halves the
GPUs that hold partial sums in every round, and the sum goes back the same way. With as many streams
as GPUs the ring is the all-reduce that daskxml's merges use, which is simulated beside it.

A stream is an endpoint of its own; those of a GPU share its ports, so that one computes while
another moves. Amazon-670k's model of 415 MB, 25 GB/s a port and direction, 10 microseconds a
message; adding reads two arrays and writes one at 450 GB/s (`daskxml.local.cost`). To save
memory the arrays are a hundredth of the model, and all rates are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from daskxml.collectives import ring_all_reduce
from daskxml.collectives.messages import Flush, Program, Receive, Send, Worked
from daskxml.core.arrays import Array
from daskxml.kernels import get_kernels
from daskxml.local import Network
from daskxml.local.clock import run_programs
from daskxml.local.cost import FLOAT_BYTES, V100_STREAM_BYTES_S
from daskxml.models.network.spec import Layout
from output import table_lines, write_csv, write_measured
from study import AMAZON_670K, RESULTS

SCALE = 100
FLOATS = Layout(AMAZON_670K).count // SCALE
ADD_S = 3 * FLOAT_BYTES / (V100_STREAM_BYTES_S / SCALE)  # of one number
GPUS, STREAMS = (2, 4, 8), (1, 2, 4, 8, 16)
Stream = Callable[[int, int, int, Array], Program[None]]


def ring(rank: int, ranks: int, first: int, part: Array) -> Program[None]:
    """Sum a partition from rank ``first`` on around the ring, and send the sum around."""
    place, buffer = (rank - first) % ranks, np.empty_like(part)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    if place:
        yield from _add(before, part, buffer)
    if place < ranks - 1:
        yield Send(after, part)
        yield Flush()
        yield Receive(before, part)  # the sum, which the last rank has first
    if place != ranks - 2:
        yield Send(after, part)


def tree(rank: int, ranks: int, first: int, part: Array) -> Program[None]:
    """Sum a partition along a binomial tree to rank ``first``, and send the sum back."""
    place, buffer = (rank - first) % ranks, np.empty_like(part)
    distances = [2**n for n in range((ranks - 1).bit_length())]
    for distance in distances:
        other = (rank + (distance if place % (2 * distance) == 0 else -distance)) % ranks
        if place % (2 * distance) == 0:
            yield from _add(other, part, buffer)
        elif place % distance == 0:
            yield Send(other, part)
            yield Flush()
            yield Receive(other, part)
    for distance in reversed(distances):
        if place % (2 * distance) == 0:
            yield Send((rank + distance) % ranks, part)


def _add(source: int, part: Array, buffer: Array) -> Program[None]:
    yield Receive(source, buffer)
    part += buffer
    yield Worked(len(part), 0)


def streamed(stream: Stream, streams: int, models: list[Array]) -> list[Program[None]]:
    """Return the programs of a stream after the other, each with one endpoint on every GPU."""
    ranks, bounds = len(models), np.linspace(0, FLOATS, streams + 1).astype(int)
    return [
        _moved(stream(rank, ranks, n % ranks, models[rank][bounds[n] : bounds[n + 1]]), n * ranks)
        for n in range(streams) for rank in range(ranks)
    ]  # fmt: skip


def _moved(program: Program[None], offset: int) -> Program[None]:
    """Return a program whose rank 0 is the endpoint ``offset``."""
    for op in program:  # nothing that it yields has an answer
        match op:
            case Send(to, array):
                yield Send(to + offset, array)
            case Receive(source, into):
                yield Receive(source + offset, into)
            case _:
                yield op


def merge_s(make: Callable[[list[Array]], list[Program[None]]], ranks: int) -> float:
    """Return the seconds of an all-reduce among so many GPUs, and check what it leaves there."""
    generator = np.random.default_rng(0)
    models = [generator.standard_normal(FLOATS, np.float32) for _ in range(ranks)]
    expected = np.sum(models, axis=0)
    programs = make(models)
    machines = [number % ranks for number in range(len(programs))]
    network = Network(bandwidth_bytes_s=Network().bandwidth_bytes_s / SCALE)
    ends = run_programs(programs, lambda _, work: ADD_S * work.rows, network, machines=machines)
    if not all(np.allclose(model, expected, atol=1e-4) for model in models):
        raise RuntimeError(f"{ranks} GPUs do not hold the sum")
    return max(end.end_s for end in ends)


def used_by_daskxml(models: list[Array]) -> list[Program[None]]:
    """Return the programs of a merge's all-reduce, whose adding takes no time here."""
    kernels, ranks = get_kernels("cpu", 1), len(models)
    return [
        ring_all_reduce(rank, ranks, model, model, 1.0, kernels)
        for rank, model in enumerate(models)
    ]


def table() -> list[dict[str, Any]]:
    """Return a row for each number of GPUs and way, with milliseconds by streams."""
    rows: list[dict[str, Any]] = []
    for ranks in GPUS:
        for name, stream in (("ring", ring), ("tree", tree)):
            times_s = {n: merge_s(partial(streamed, stream, n), ranks) for n in STREAMS}
            rows.append({
                "GPUs": ranks, "all-reduce": name,
                **{f"{n} stream{'s' * (n > 1)}, ms": 1e3 * spent for n, spent in times_s.items()},
            })  # fmt: skip
        spent_ms = 1e3 * merge_s(used_by_daskxml, ranks)
        rows.append({**dict.fromkeys(rows[-1]), "GPUs": ranks, "all-reduce": "daskxml's ring",
                     f"{ranks} streams, ms": spent_ms})  # fmt: skip
    return rows


def main() -> None:
    """Simulate, and write the table."""
    rows = table()
    write_csv(RESULTS / "merging.csv", rows)
    write_measured("merging", table_lines(rows))


if __name__ == "__main__":
    main()
