"""Table 1 of Adasum: a machine's GPUs divide the optimizer's state and Adasum by layers.

Section 4.3 of Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021, on the
virtual clock; needs no data. The GPUs of a machine sum their gradients, Adam steps once for the
machine, and what it changed is combined with the other machine's by Adasum, layer by layer:

    whole          every GPU has all of the sum and of the state, and combines all layers with its
                   counterpart on the other machine;
    partitioned    every layer has one owner on each machine, to which the gradients go; it has the
                   layer's state, combines the layer with its counterpart, and broadcasts the
                   change while the next one is combined.

The largest layers are assigned first, each to the GPU that has the least. Two machines of 4 GPUs;
every GPU has a port of 12.5 GB/s in each direction (100 Gb/s InfiniBand; PCIe 3.0 is about as
fast), which the messages within and between machines share, and 10 microseconds a message.
Arithmetic is bound by memory, at 450 GB/s (`daskxml.local.cost`): Adam moves 7 numbers a
parameter, Adasum 2.5, a sum 3. Forward and backward passes, and the host's time for every layer,
are not in it. To save memory the arrays are a thousandth of the model, and all rates are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adasum import adasum_of
from daskxml.collectives.adasum import Vector
from daskxml.collectives.adasum_tree import adasum_tree
from daskxml.collectives.messages import Flush, Program, Receive, Send, Worked
from daskxml.collectives.ring import all_reduce
from daskxml.core.arrays import Array
from daskxml.kernels import get_kernels
from daskxml.local import Network
from daskxml.local.clock import run_programs
from daskxml.local.cost import FLOAT_BYTES, V100_STREAM_BYTES_S
from drawing import Figure, table_lines
from study import AMAZON_670K

MACHINES, GPUS, UPDATES = 2, 4, 2
PORT_BYTES_S = 12.5e9
ADAM_MOVES, ADASUM_MOVES, SUM_MOVES = 7.0, 2.5, 3.0  # numbers read or written for each parameter
BETA_1, BETA_2, EPSILON, RATE = 0.9, 0.999, 1e-3, 0.01
WIDTH, INNER, BLOCKS, WORDS = 1024, 4096, 24, 30_522  # of BERT-Large
KERNELS = get_kernels("cpu", 1)


def bert_large() -> dict[str, int]:
    """Return the parameters of every layer with weights (attention, feed-forward, embedding)."""
    block = dict.fromkeys(("query", "key", "value", "output"), WIDTH * (WIDTH + 1))
    block |= {"norms": 4 * WIDTH, "inner": (WIDTH + 1) * INNER, "outer": (INNER + 1) * WIDTH}
    layers = {f"{n}.{name}": size for n in range(BLOCKS) for name, size in block.items()}
    return {"words": WORDS * WIDTH, "positions": (512 + 2 + 2) * WIDTH, **layers}


def amazon_670k() -> dict[str, int]:
    """Return the parameters of the two layers of Amazon-670k's network."""
    (hidden,) = AMAZON_670K.hidden
    first, second = (AMAZON_670K.features + 1) * hidden, (hidden + 1) * AMAZON_670K.labels
    return {"hidden": first, "output": second}


MODELS = {"BERT-Large": bert_large, "Amazon-670k's network": amazon_670k}


def owners_of(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Assign layers to so many owners, the largest first, each to the owner that has the least.

    >>> owners_of({"a": 5, "b": 3, "c": 3, "d": 1}, 2)
    [['a', 'd'], ['b', 'c']]
    """
    owned: list[list[str]] = [[] for _ in range(parts)]
    for name in sorted(sizes, key=lambda n: -sizes[n]):
        min(owned, key=lambda names: sum(sizes[n] for n in names)).append(name)
    return owned


class Assigned:
    """A flat model whose layers are in the order of their owners.

    Attributes
    ----------
    layers
        Of every owner, where each of its layers is.
    parts
        Of every owner, where all of them are.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.layers: list[list[slice]] = []
        self.parts: list[slice] = []
        self.count = 0
        for names in owners_of(sizes, GPUS):
            first, own = self.count, []
            for name in names:
                own.append(slice(self.count, self.count + sizes[name]))
                self.count += sizes[name]
            self.layers.append(own)
            self.parts.append(slice(first, self.count))

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """All layers, as Adasum takes them."""
        return [(str(s.start), s.start, s.stop) for own in self.layers for s in own]

    @property
    def largest_share(self) -> float:
        """The share of the parameters of the owner with the most."""
        return max(part.stop - part.start for part in self.parts) / self.count


@dataclass
class Adam:
    """Adam's moments of some of the parameters."""

    first: Array
    second: Array
    steps: int = 0

    @classmethod
    def of(cls, count: int) -> Adam:
        """Return the state before the first step."""
        return cls(np.zeros(count, np.float32), np.zeros(count, np.float32))

    def change(self, gradient: Array) -> None:
        """Overwrite a gradient with the change that a step makes."""
        self.steps += 1
        self.first += (1 - BETA_1) * (gradient - self.first)
        self.second += (1 - BETA_2) * (gradient * gradient - self.second)
        mean = self.first / (1 - BETA_1**self.steps)
        root = np.sqrt(self.second / (1 - BETA_2**self.steps))
        gradient[...] = -RATE * mean / (root + EPSILON)


@dataclass
class Gpu:
    """One GPU: where it is, its weights, and its gradients of every update, which it overwrites."""

    machine: int
    number: int
    weights: Array
    gradients: Array

    @property
    def local(self) -> list[int]:
        """The GPUs of its machine, as endpoints."""
        return [self.machine * GPUS + n for n in range(GPUS)]

    @property
    def peers(self) -> list[int]:
        """Its counterparts on all machines."""
        return [m * GPUS + self.number for m in range(MACHINES)]

    def others(self, direction: int) -> Iterator[int]:
        """Yield the other numbers of its machine, so that all take turns."""
        return ((self.number + direction * n) % GPUS for n in range(1, GPUS))


def among(program: Program[Any], endpoints: Sequence[int]) -> Program[Any]:
    """Run a program whose ranks are these endpoints."""
    answer = None
    while True:
        try:
            op = program.send(answer)
        except StopIteration as stop:
            return stop.value
        match op:
            case Send(to, array):
                op = Send(endpoints[to], array)
            case Receive(source, into):
                op = Receive(endpoints[source], into)
        answer = yield op


def moved(moves: float, floats: int) -> Worked:
    """Return the work of passing over so many parameters."""
    return Worked(round(moves * floats), 0)


def combine(gpu: Gpu, change: Array, spans: Sequence[tuple[str, int, int]]) -> Program[None]:
    """Combine changes with the counterparts on other machines."""
    yield from among(adasum_tree(Vector(gpu.machine, change, spans, KERNELS), MACHINES), gpu.peers)
    yield moved(ADASUM_MOVES, len(change))


def whole(gpu: Gpu, assigned: Assigned) -> Program[None]:
    """Update the model with all of the state on every GPU."""
    adam = Adam.of(assigned.count)
    for gradient in gpu.gradients:
        summed = all_reduce(gpu.number, GPUS, gradient, gradient, 1.0, KERNELS)
        yield from among(summed, gpu.local)
        yield moved(SUM_MOVES * (GPUS - 1) / GPUS, assigned.count)
        adam.change(gradient)
        yield moved(ADAM_MOVES, assigned.count)
        yield from combine(gpu, gradient, assigned.spans)
        gpu.weights += gradient
        yield moved(SUM_MOVES, assigned.count)


def partitioned(gpu: Gpu, assigned: Assigned) -> Program[None]:
    """Update the model with every layer's state at one GPU of the machine."""
    part, layers = assigned.parts[gpu.number], assigned.layers[gpu.number]
    adam = Adam.of(part.stop - part.start)
    for gradient in gpu.gradients:
        yield from _collect(gpu, gradient, assigned.parts)
        adam.change(gradient[part])
        yield moved(ADAM_MOVES, part.stop - part.start)
        for layer in layers:
            change = gradient[layer]
            yield from combine(gpu, change, [("layer", 0, len(change))])
            for other in gpu.others(1):
                yield Send(gpu.local[other], change)
        for other in gpu.others(-1):
            for place in assigned.layers[other]:
                yield Receive(gpu.local[other], gradient[place])
        yield Flush()
        gpu.weights += gradient
        yield moved(SUM_MOVES, assigned.count)


def _collect(gpu: Gpu, gradient: Array, parts: Sequence[slice]) -> Program[None]:
    """Send each owner its part of the gradient, and add up this GPU's own."""
    for other in gpu.others(1):
        yield Send(gpu.local[other], gradient[parts[other]])
    mine = gradient[parts[gpu.number]]
    theirs = np.empty_like(mine)
    for other in gpu.others(-1):
        yield Receive(gpu.local[other], theirs)
        mine += theirs
        yield moved(SUM_MOVES, len(mine))
    yield Flush()


WAYS = {"whole": whole, "partitioned": partitioned}


def expected_weights(gradients: Array, assigned: Assigned) -> Array:
    """Return what all GPUs must have, from ``(machines, gpus, updates, parameters)``."""
    weights = np.zeros(assigned.count)
    states = [Adam.of(assigned.count) for _ in range(MACHINES)]
    for number in range(gradients.shape[2]):
        changes = gradients[:, :, number].sum(axis=1)
        for adam, change in zip(states, changes, strict=True):
            adam.change(change)
        weights += adasum_of(list(changes), assigned.spans)
    return weights


def update_s(way: str, sizes: Mapping[str, int], scale: float) -> float:
    """Return the seconds of an update of the model, and check what it leaves on every GPU."""
    assigned = Assigned(sizes)
    shape = (MACHINES, GPUS, UPDATES, assigned.count)
    gradients = np.random.default_rng(0).standard_normal(shape, np.float32)
    expected = expected_weights(gradients, assigned)
    gpus = [
        Gpu(machine, number, np.zeros(assigned.count, np.float32), own.copy())
        for machine, machines in enumerate(gradients) for number, own in enumerate(machines)
    ]  # fmt: skip
    number_s = FLOAT_BYTES * scale / V100_STREAM_BYTES_S
    network = Network(bandwidth_bytes_s=PORT_BYTES_S / scale)
    programs = [WAYS[way](gpu, assigned) for gpu in gpus]
    ends = run_programs(programs, lambda _, work: number_s * work.rows, network)
    if not all(np.allclose(gpu.weights, expected, atol=1e-5) for gpu in gpus):
        raise RuntimeError(f"{way}: the GPUs do not hold the model")
    return max(end.end_s for end in ends) / UPDATES


def table(scale: int) -> list[dict[str, Any]]:
    """Return a row for each model and way."""
    rows: list[dict[str, Any]] = []
    for model, layers in MODELS.items():
        full = layers()
        sizes = {name: max(1, round(size / scale)) for name, size in full.items()}
        first_s = update_s("whole", sizes, scale)
        for way in WAYS:
            share = 1.0 if way == "whole" else Assigned(full).largest_share
            spent_s = update_s(way, sizes, scale)
            rows.append({
                "model": model, "state and Adasum": way, "largest part": share,
                "state of a GPU, GB": 2 * FLOAT_BYTES * share * sum(full.values()) / 1e9,
                "update, ms": 1e3 * spent_s, "times faster": first_s / spent_s,
            })  # fmt: skip
    return rows


def partition(figure: Figure) -> None:
    """Simulate, and write the table."""
    rows = table(1000)
    figure.write(rows, table_lines(rows))


KINDS = {"partition": partition}
