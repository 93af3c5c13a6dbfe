"""A run with overlapped merges repeated from its history alone, bit for bit, in one process.

Every worker has a member of its own, which goes through its batches in their order; the correction
by the merge before comes after as many of them as the history says. Merges run in lockstep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daskxml.combine import outer_memory
from daskxml.combine.lockstep import run_together
from daskxml.config import RunConfig
from daskxml.training.ledger import Span, cut_batches
from daskxml.training.member import Member
from daskxml.training.merging import merge_program
from daskxml.training.orders import MergeOrder
from daskxml.training.placement import Placement
from daskxml.training.setup import member_settings
from daskxml.types import Partition


def make_member(config: RunConfig, rows: Partition) -> Member:
    """Return a member that holds all rows, as one stream."""
    placement = Placement(True, (rows.rows,), ())
    spec = config.model_spec(rows.features.columns, rows.labels.columns)
    strategy = config.make_strategy()
    member = Member(member_settings(config, spec, strategy, placement, row_nonzeros=9, threads=1))
    member.initialize()
    member.hold_all([rows], [])
    return member


class Replay:
    """The workers of a run, and the global model that they come to."""

    def __init__(self, config: RunConfig, rows: Partition) -> None:
        self._config, self._rows = config, rows
        self.members: dict[str, Member] = {}
        giver = make_member(config, rows)
        self._models = giver.current.copy(), giver.previous.copy()
        self.generation = 0

    def repeat(self, history: Sequence[Mapping[str, Any]]) -> Any:
        """Go through the rows of a history; return the flat model at the end."""
        for number, row in enumerate(history):
            overlaps = number + 1 < len(history) and any(
                "corrected_after" in worker for worker in history[number + 1]["workers"].values()
            )
            for name, worker in row["workers"].items():
                self._work(name, worker)
            self._merge(row, history[number + 1]["workers"] if overlaps else {})
        return self._models[0]

    def _work(self, name: str, worker: Mapping[str, Any]) -> None:
        corrected_after = worker.get("corrected_after")
        if corrected_after is None:
            self._seat(name)
        member = self.members[name]
        rows = worker["batch_rows"]
        leases = [cut_batches([Span(*span) for span in spans], rows) for spans in worker["leases"]]
        for number, batch in enumerate(batch for lease in leases for batch in lease):
            if number == corrected_after:
                member.commit(self.generation)
            member.lease([batch], worker["lr"], {})
        member.commit(self.generation)  # nothing, if that was done before

    def _seat(self, name: str) -> None:
        """A worker that begins from the global model; moments of an optimizer stay."""
        if name not in self.members:
            self.members[name] = make_member(self._config, self._rows)
        self.members[name].set_model(*self._models, self.generation)

    def _merge(self, row: Mapping[str, Any], following: Mapping[str, Any]) -> None:
        crew = [self.members[name] for name in row["workers"]]
        self.generation += 1
        weights = {name: worker["weight"] for name, worker in row["workers"].items()}
        is_work = any(worker["rows"] for worker in row["workers"].values())
        momentum = getattr(self._config.strategy, "momentum", 0.0) if is_work else 0.0
        order = MergeOrder(self.generation, weights, momentum, overlaps=bool(following))
        goes_on = [name for name in following if "corrected_after" in following[name]]
        for name in goes_on:
            self.members[name].take_snapshot(order)
        hosts = ("here",) * len(crew)
        run_together([merge_program(m, order, rank, hosts) for rank, m in enumerate(crew)])
        self._models = crew[0].scratch.copy(), self._remembered(crew[0])

    def _remembered(self, member: Member) -> Any:
        """What a merge remembers: the global model before, or the outer optimizer's memory."""
        combine = self._config.combine
        if combine.outer == "none":
            return member.current.copy()
        memory = member.previous.copy()
        outer_memory(memory, member.scratch, combine.outer_momentum, member.kernels)
        return memory


def assert_repeats(config: RunConfig, rows: Partition, history: Any, model: Any) -> None:
    """Check that a history leads to a model, by its parameters' names."""
    flat = Replay(config, rows).repeat(history)
    layout = make_member(config, rows).layout
    for name, array in layout.views(flat).items():
        assert np.array_equal(array, model.parameters[name]), name
