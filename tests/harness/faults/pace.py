"""How fast the others go on while a worker is frozen, slow or gone, beside the run undisturbed.

Workers are so slow that a run takes half a minute of virtual time, and what disturbs it a part of
that. The run without it, with the same speeds, says how many rows a second the others can merge.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from harness.faults.invariants import Violated, require
from harness.faults.loop import Process
from harness.faults.schedule import LEASING, SHARING, TOGETHER, Case, Fault
from harness.faults.simulation import Simulation, simulate

ROWS_PER_S = 2.0  # of each worker
FROZEN_S = (20.0, 40.0)  # longer than a heartbeat is waited for (`SILENT_S`, 2.5 s)
NOTICED_S = 7.0  # after which the others wait no more for a worker that is frozen or gone
SLOW_S = 10.0  # the same of one whose messages take half a second more, in each step of a merge
SHARE = {"freeze": 0.8, "kill": 0.7, "slow": 0.6}  # of the rate that the others have undisturbed


@dataclass
class Account:
    """What a run has merged, and when it was disturbed.

    Attributes
    ----------
    merges
        Virtual seconds and all rows that were merged until then.
    struck_s
        When its faults struck.
    """

    merges: list[tuple[float, int]] = field(default_factory=list)
    struck_s: list[float] = field(default_factory=list)

    def rate(self, from_s: float, until_s: float) -> float:
        """Return the rows merged a second, from the first to the last merge between two times.

        Examples
        --------
        >>> account = Account([(1.0, 10), (2.0, 20), (4.0, 30)])
        >>> account.rate(0.0, 9.0), account.rate(0.0, 2.0)
        (6.666666666666667, 10.0)
        """
        inside = [each for each in self.merges if from_s <= each[0] <= until_s]
        (first_s, first), (last_s, last) = inside[0], inside[-1]
        return (last - first) / (last_s - first_s)

    def silence_s(self, from_s: float = 0.0) -> float:
        """Return the longest time between two merges that ends after a time."""
        times = [now_s for now_s, _ in self.merges]
        pairs = itertools.pairwise(times)
        return max((after - before for before, after in pairs if after > from_s), default=0.0)


class PacedSimulation(Simulation):
    """A case with workers of one low speed; an account is kept of what is merged."""

    def __init__(self, account: Account, *args: Any) -> None:
        super().__init__(*args)
        self._account = account

    def _speed(self) -> float:
        return ROWS_PER_S

    def step(self, what: str, process: Process) -> None:
        super().step(what, process)
        rows, account = self.truth.rows, self._account
        if len(rows) > len(account.merges):
            account.merges.append((self.loop.now_s, json.loads(rows[-1])["rows"]))

    def _strike(self, fault: Fault, here: Process) -> None:
        super()._strike(fault, here)
        self._account.struck_s.append(self.loop.now_s)


def draw_paced(seed: int) -> Case:
    """Draw a run in which one worker is frozen, slow from some time on, or lost for good.

    Merges have a quorum where others are to go on beside a worker that is there.
    """
    rng = random.Random(f"pace {seed}")
    kind = ("freeze", "kill", "freeze", "slow")[seed % 4]
    names = (*LEASING, *SHARING, *TOGETHER) if kind == "kill" else LEASING
    struck = Fault(
        at=rng.randint(60, 160), kind=kind, pick=rng.randrange(4),
        amount=rng.uniform(*FROZEN_S) if kind == "freeze" else rng.uniform(1.0, 10.0),
        returns_s=-1.0, same_address=False,
    )  # fmt: skip
    case = Case(
        seed, rng.choice(names), quorum=kind != "kill", is_replicated=rng.random() < 0.5,
        workers=rng.choice([3, 4]), epochs=10, checkpoint_every=rng.randint(2, 4),
        faults=(struck,), machines=rng.choice([1, 2]), transport=rng.choice(["tls", "tcp"]),
        grace=1.0,
    )  # fmt: skip
    return replace(case, machines=1) if case.strategy in SHARING else case


def paced(case: Case) -> tuple[str, float, float]:
    """Make a run with its fault and without.

    Returns
    -------
    :
        What it violates; the share of the others' rate that was kept, 1 where the disturbance left
        too little time to say; and by how much the longest silence is longer, seconds.
    """
    undisturbed, disturbed = Account(), Account()
    (fault,), others = case.faults, (case.workers - 1) / case.workers
    for account, faults in ((undisturbed, ()), (disturbed, case.faults)):
        made = replace(case, faults=faults)
        if problem := simulate(made, partial(PacedSimulation, account)).problem:
            return problem, 1.0, 0.0
    if not disturbed.struck_s:
        return "", 1.0, 0.0
    begun_s = disturbed.struck_s[0]
    noticed_s = SLOW_S if fault.kind == "slow" else NOTICED_S
    end_s = begun_s + fault.amount if fault.kind == "freeze" else disturbed.merges[-1][0]
    inside = [now_s for now_s, _ in disturbed.merges if begun_s + noticed_s <= now_s <= end_s]
    share, silence_s = 1.0, disturbed.silence_s(begun_s) - undisturbed.silence_s()
    if len(inside) > 2:
        usual = undisturbed.rate(0.0, undisturbed.merges[-1][0])
        share = disturbed.rate(inside[0], inside[-1]) / (others * usual)
    least = SHARE[fault.kind]
    try:
        require(silence_s <= noticed_s, f"the others waited {silence_s:.1f} s longer than ever")
        require(share >= least, f"the others have {share:.2f} of their rate while one is away")
    except Violated as problem:
        return f"Violated: {problem}", share, silence_s
    return "", share, silence_s


def least_shares(outcomes: Sequence[tuple[Case, float, float]]) -> list[dict[str, Any]]:
    """Return, of each kind of disturbance, runs, the least share and the longest silence."""
    rows = []
    for kind in SHARE:
        those = [(share, s) for case, share, s in outcomes if case.faults[0].kind == kind]
        if those:
            shares, silences = zip(*those, strict=True)
            rows.append({"disturbed by": kind, "runs": len(those), "least share": min(shares),
                         "mean share": sum(shares) / len(shares),
                         "longest silence more, s": max(silences)})  # fmt: skip
    return rows
