"""The tasks by which a model is fitted, as functions, and what a process keeps between them.

::

    rows ─▶ order, plan of a member ─▶ its pieces, each fitted on its own ─▶ member
    members, rows to evaluate on ─▶ sums of metrics

A task's result depends on its arguments alone, not on the process, nor on the other pieces. So a
piece that is lost is fitted again, and one that was fitted twice counts once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Partition, Segment
from daskxml.core.errors import ModelError
from daskxml.data.rows import slice_csr
from daskxml.kernels import Kernels, get_kernels
from daskxml.metrics import MetricSums, metric_sums, propensities
from daskxml.models.protocol import Ranker, joined_arrays

Member = Mapping[str, Array]  # its arrays, by their own names
Ranking = Callable[[Sequence[Segment], int], tuple[Any, Any]]  # `Ranker.top_k`


@dataclass(frozen=True)
class FitSettings:
    """What the tasks of a run have in common.

    Attributes
    ----------
    spec
        The model, with everything chosen that depends on the rows.
    rows
        Training rows.
    config
        The `daskxml.config.RunConfig`.
    """

    spec: Any
    rows: int
    config: Any


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a task is computed: the kernels' device, their threads on a CPU, and the memory."""

    device: str = "cpu"
    threads: int = 1
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """How a member is cut: a value for whoever submits the pieces, made once.

    It may depend on the memory that is free, so it is not made again for pieces of another.

    Attributes
    ----------
    pieces
        Values, each with ``work``, its products of values, labels and passes if a row had one
        value, and ``key``, integers that distinguish it from the member's others in every plan.
    needs
        What fitting takes, for the user.
    """

    pieces: tuple[Any, ...]
    needs: str


class Fitter:
    """Fits pieces and ranks rows, in one process.

    Several threads may call it at a time. On a GPU they take turns.

    Parameters
    ----------
    settings, slot
        Of the run, and of the process.
    """

    def __init__(self, settings: FitSettings, slot: Slot) -> None:
        self.settings, self.slot = settings, slot
        self.building, self._on_gpu = threading.Lock(), threading.Lock()
        self._tests: dict[int, Partition] = {}  # on the device
        self._ranked: tuple[int, Ranking] | None = None  # by so many members

    @cached_property
    def kernels(self) -> Kernels:
        """Of the slot."""
        return get_kernels(self.slot.device, self.slot.threads, self.settings.config.gpu.exact)

    def turn(self) -> threading.Lock:
        """Return what is held while the device computes: on a CPU, a lock of this call's own."""
        return threading.Lock() if self.kernels.name == "cpu" else self._on_gpu

    def inverse_propensity(self, counts: Array) -> Array:
        """Return ``(labels,)``: the weights of labels in PSP@k."""
        data = self.settings.config.data
        return propensities(counts, self.settings.rows, data.propensity_a, data.propensity_b)

    def order(self, prepared: Any, number: int) -> Any:
        """Return what the pieces of a member have in common, from what `prepare` has returned."""

    def plan(self, part: Partition, counts: Array, order: Any, slots: int, on_gpus: bool) -> Plan:
        """Cut a member into pieces for so many tasks at a time, which fit this process's memory.

        Other parameters are of `fit`.
        """
        raise NotImplementedError

    def fit(self, part: Partition, counts: Array, order: Any, number: int, piece: Any) -> Any:
        """Return a fitted piece.

        Parameters
        ----------
        part, counts
            The training rows, and how many of them have each label, ``(labels,)``.
        order, number
            Of the member, and its number in the model.
        piece
            Of its plan.
        """
        raise NotImplementedError

    def put_together(self, order: Any, plan: Plan, pieces: Sequence[Any]) -> Member:
        """Return a member's arrays, from all of its pieces in the order of the plan."""
        raise NotImplementedError

    def ranking(self, members: Sequence[Member]) -> Ranking:
        """Return what ranks labels by these members."""
        spec, kind = self.settings.spec, self.settings.config.kind
        ranker: Ranker = kind.ranker(spec, joined_arrays(members, kind.member), self.kernels)
        return ranker.top_k

    def rank(
        self, members: Sequence[Member], counts: Array, shard: int, part: Partition, start: int,
        stop: int,
    ) -> MetricSums:  # fmt: skip
        """Rank labels of rows of a shard by members; return the sums of their metrics."""
        wanted = self.settings.config.evaluation
        with self.building:
            kernels, count = self.kernels, len(members)
            if self._ranked is None or self._ranked[0] != count:
                self._ranked = count, self.ranking(members)
            _, top_k = self._ranked
            there = self._tests.setdefault(shard, kernels.to_device(part))
        sums, inverse = MetricSums.zero(wanted.k), self.inverse_propensity(counts)
        with self.turn():
            for at in range(start, stop, wanted.batch_rows):
                end = min(at + wanted.batch_rows, stop)
                segment = Segment(there, kernels.to_device(np.arange(at, end)))
                ids, _ = top_k([segment], wanted.k[-1])
                truth = slice_csr(part.labels, at, end)
                sums += metric_sums(ids, truth, inverse, wanted.k)
        return sums


def by_fitter(here: Callable[[], Fitter], method: str, *work: Any) -> Any:
    """Call a method of the fitter of the process that computes a task."""
    return getattr(here(), method)(*work)


def stored_row(settings: FitSettings, stored: tuple[Member, dict[str, Any]]) -> dict[str, Any]:
    """Return the row of the history of a member that was stored.

    Raises
    ------
    ModelError
        If it is of other rows or settings, saying what differs.
    """
    member, row = stored
    rows, number, kind = row["rows"] // row["megabatch"], row["megabatch"], settings.config.kind
    if rows != settings.rows:
        raise ModelError(
            f"the run to continue has {rows:,} training rows, the data {settings.rows:,}: give "
            "the same files and the same data.validation"
        )
    if problem := kind.problem(settings.spec, joined_arrays([member], kind.member)):
        raise ModelError(
            f"{kind.member} {number} of the run to go on with: {problem}: leave [model] as it was"
        )
    return row


def stored_member(stored: tuple[Member, dict[str, Any]]) -> Member:
    """Return the arrays of a member that was stored."""
    return stored[0]
