"""What a run remembers of one worker, in the scheduler.

A worker goes by its Dask name in the strategy and the history, and by its address in Dask; a
worker that is started again under its old name is a new `Hand`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from daskxml.runtime.machines import Arrival
from daskxml.strategies.protocol import Device
from daskxml.training.budget import LogitsBudget


@dataclass(eq=False)
class Hand:
    """One worker process.

    Attributes
    ----------
    arrival
        Its name in the history, where it listens, and what it steps with.
    lost
        Set once the scheduler has lost it.
    is_seated
        It is a member of the run.
    turns
        Leases given to it so far; they run in this order.
    generation, outrun
        Of the model that it holds, -1 before it has one; how often a merge was quicker than it.
    snapshot_for, snapshot_turn
        The last merge that overlaps with training, and the turn in which it takes its snapshot.
    squared_norm
        Of its replica after its last lease, if it has told and no merge has changed it since.
    speed, memory, budget
        Rows a second on made-up rows, what it needs of its memory, in words, and for its logits.
    train_shards, test_shards
        What it is known to hold, where the data is sharded.
    """

    arrival: Arrival
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    is_seated: bool = False
    turns: int = 0
    generation: int = -1
    outrun: int = 0
    snapshot_for: int = -1
    snapshot_turn: int = -1
    squared_norm: float | None = None
    speed: float = 0.0
    memory: str = ""
    budget: LogitsBudget | None = None
    train_shards: set[int] = field(default_factory=set)
    test_shards: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self.arrival.name

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.arrival.address

    @property
    def host(self) -> str:
        """Its machine."""
        return self.arrival.host

    @property
    def device(self) -> Device:
        """What it steps with."""
        return self.arrival.device

    @property
    def is_lost(self) -> bool:
        """Whether the worker is gone."""
        return self.lost.is_set()

    def plan_snapshot(self, generation: int) -> None:
        """Give it a turn for its snapshot, after all its leases so far; once for each merge."""
        if self.snapshot_for != generation:
            self.snapshot_for, self.snapshot_turn = generation, self.turns
            self.turns += 1
