"""Which rule of batch sizes to trust: drift, settling and following, by the times of batches alone.

    python benchmarks/papers/batch_rules.py

Workers have speeds at equal distances from 1 to 1 / spread, and 25 batches of b_max = 64 rows each
in a mega-batch. At speed 1 a batch of b_max rows takes 45 ms, of which a share is fixed; each
batch's time has a log-normal jitter. Nothing is computed (`daskxml.local.timing`), so it needs
no data. Equal workers run for 200 mega-batches, unequal ones for 30; in a third study one of equal
workers is half as fast from mega-batch 11 on. Writes batch_rules.csv, .md and .png.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from daskxml.local import CostModel
from daskxml.local.timing import Speeds, TimedMegabatch, TimedRun
from daskxml.strategies import AdaptiveSgd
from daskxml.strategies.dispatch import DEFAULT_POLICY
from daskxml.strategies.megabatch import MegabatchState, WorkerState, grant_leases
from daskxml.strategies.protocol import Command, LeaseDone
from output import panels, save, write_csv
from study import RESULTS

BATCH_S, BATCH_MAX, BATCHES_EACH = 0.045, 64, 25
JITTERS = (0.0, 0.08, 0.2)
WORKERS, SPREADS, FIXED = (2, 4, 8), (1.0, 1.32, 2.0, 4.0), (0.0, 0.25)
EQUAL_MEGABATCHES, MEGABATCHES, SETTLED_AFTER, SLOWED_AT = 200, 30, 10, 10


class Undamped(AdaptiveSgd):
    """The rule ``speed`` without its damping: each step goes all the way."""

    def scale(self, state: MegabatchState) -> MegabatchState:
        """Forget the last step first."""
        members = {name: replace(w, gain=0.0) for name, w in state.members.items()}
        return super().scale(replace(state, members=members))


class Former(AdaptiveSgd):
    """What the default was: b (u / mean u)^1/2, leases in halves, the last batch a whole update."""

    def lease(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Lease as strategies with a shared model do."""
        return grant_leases(state, lambda worker, rows: self.rate(worker), DEFAULT_POLICY)

    def count_updates(self, worker: WorkerState, done: LeaseDone) -> float:
        """Count every batch as one."""
        return done.updates

    def scale(self, state: MegabatchState) -> MegabatchState:
        """Compare with the arithmetic mean, within the bounds."""
        low, high = self.config.bounds
        mean = sum(w.updates for w in state.members.values()) / len(state.members)
        sizes = {n: w.batch_size * (w.updates / mean) ** 0.5 for n, w in state.members.items()}
        members = {
            name: replace(w, batch_size=min(max(sizes[name], low), high))
            for name, w in state.members.items()
        }
        return replace(state, members=members)


def _make(rule: Any, dispatch: Any, kind: type[AdaptiveSgd] = AdaptiveSgd) -> Any:
    return lambda batches: kind(
        AdaptiveSgd.Config(
            batch_max=BATCH_MAX, megabatch_batches=batches, rule=rule, dispatch=dispatch
        )
    )


@dataclass(frozen=True)
class Rule:
    """A candidate, and its colour in the figure."""

    title: str
    color: str
    make: Callable[[int], AdaptiveSgd]


RULES = {
    "speed": Rule("speed (default)", "tab:red", _make("speed", "lease")),
    "speed-undamped": Rule("speed, undamped", "tab:pink", _make("speed", "lease", Undamped)),
    "geometric": Rule("damped, geometric mean", "tab:green", _make("geometric", "lease")),
    "arithmetic": Rule("damped, mean (former default)", "tab:olive",
                       _make("speed", "lease", Former)),
    "sign": Rule("sign, batch by batch (authors' code)", "tab:blue", _make("sign", "batch")),
    "paper": Rule("as printed, batch by batch", "tab:orange", _make("paper", "batch")),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run of the study; ``slows``: the first worker is half as fast from the middle on."""

    rule: str
    jitter: float
    workers: int
    spread: float
    fixed: float
    slows: bool = False

    @property
    def megabatches(self) -> int:
        """How long it runs."""
        return EQUAL_MEGABATCHES if self.spread == 1.0 and not self.slows else MEGABATCHES

    def speed(self, name: str, megabatch: int) -> float:
        """Return the speed of a worker, which are called by numbers."""
        if self.slows and name == "0" and megabatch >= SLOWED_AT:
            return 0.5
        return 1.0 - (1.0 - 1.0 / self.spread) * int(name) / max(1, self.workers - 1)

    @property
    def is_reachable(self) -> bool:
        """Whether the slowest takes no longer for b_min rows than the fastest for b_max."""
        slowest = 0.5 if self.slows else 1.0 / self.spread
        return (slowest - self.fixed) / (1.0 - self.fixed) >= 1 / 8

    def run(self, noise: float = 0.0, seed: int = 7) -> list[TimedMegabatch]:
        """Simulate it."""
        per_row_s = BATCH_S * (1.0 - self.fixed) / BATCH_MAX
        cost = CostModel(fixed_s=BATCH_S * self.fixed, per_row_s=per_row_s, jitter=self.jitter)
        speeds: Speeds = self.speed
        strategy = RULES[self.rule].make(BATCHES_EACH * self.workers)
        names = [str(number) for number in range(self.workers)]
        return TimedRun(strategy, names, speeds, cost, noise=noise, seed=seed).run(self.megabatches)


def cells() -> Iterable[Cell]:
    """Return every cell of the study whose sizes can make the updates equal."""
    for rule, jitter, workers, fixed in itertools.product(RULES, JITTERS, WORKERS, FIXED):
        unequal = [Cell(rule, jitter, workers, spread, fixed) for spread in SPREADS]
        slowed = Cell(rule, jitter, workers, 1.0, fixed, slows=True)
        yield from (cell for cell in (*unequal, slowed) if cell.is_reachable)


def score(cell: Cell, run: Sequence[TimedMegabatch]) -> dict[str, Any]:
    """Return a row of the table."""
    from_mb = SLOWED_AT + SETTLED_AFTER if cell.slows else SETTLED_AFTER
    late = run[from_mb:]
    return {
        **asdict(cell),
        "least_size": round(min(min(m.batch_sizes.values()) for m in run) / BATCH_MAX, 4),
        "last_largest": round(max(run[-1].batch_sizes.values()) / BATCH_MAX, 4),
        "apart": round(sum(m.spread for m in late) / len(late), 3),
        "apart_most": round(max(m.spread for m in late), 3),
        "busy": round(sum(m.busy_share for m in late) / len(late), 4),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page."""
    lines = ["| rule | jitter | equal workers: least size / b_max | largest at the end "
             "| unequal: updates apart | worst | busy | slowed: updates apart | busy |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for rule, jitter in itertools.product(RULES, JITTERS):
        mine = [r for r in rows if (r["rule"], r["jitter"]) == (rule, jitter)]
        equal = [r for r in mine if r["spread"] == 1.0 and not r["slows"]]
        unequal = [r for r in mine if r["spread"] > 1.0]
        slowed = [r for r in mine if r["slows"]]
        lines.append(
            f"| {RULES[rule].title} | {jitter:.0%} | {min(r['least_size'] for r in equal):.2f} "
            f"| {min(r['last_largest'] for r in equal):.2f} | {_mean(unequal, 'apart'):.2f} "
            f"| {max(r['apart'] for r in unequal):.2f} | {min(r['busy'] for r in unequal):.1%} "
            f"| {max(r['apart'] for r in slowed):.2f} | {min(r['busy'] for r in slowed):.1%} |"
        )
    return "\n".join(lines)


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(sum(row[key] for row in rows) / len(rows))


def noisy() -> str:
    """Return a table of equal workers of which each has its own noise in every mega-batch."""
    lines = ["| rule | 2 workers | 4 | 8 |", "|---|---:|---:|---:|"]
    for rule in RULES:
        least = []
        for workers in WORKERS:
            run = Cell(rule, 0.0, workers, 1.0, 0.0).run(noise=0.08)
            least.append(min(min(m.batch_sizes.values()) for m in run) / BATCH_MAX)
        lines.append(f"| {RULES[rule].title} | {' | '.join(f'{x:.2f}' for x in least)} |")
    return "\n".join(lines)


def draw() -> None:
    """Draw batch sizes of every rule, at a jitter of 8 %."""
    shown = (
        ("2 equal workers: the smaller size", Cell("", 0.08, 2, 1.0, 0.0)),
        ("4 workers, spread 1.32: the slowest", Cell("", 0.08, 4, 1.32, 0.0)),
        ("4 workers, spread 2, a quarter fixed: the slowest", Cell("", 0.08, 4, 2.0, 0.25)),
        ("4 equal workers, one halves: that one", Cell("", 0.08, 4, 1.0, 0.0, slows=True)),
    )
    figure, axes = panels(1, len(shown))
    for axis, (title, cell) in zip(axes[0], shown, strict=True):
        for name, rule in RULES.items():
            run = replace(cell, rule=name).run()
            least = [min(m.batch_sizes.values()) for m in run]
            of_first = [m.batch_sizes["0"] for m in run]
            sizes = of_first if cell.slows else least
            axis.plot(range(1, len(run) + 1), sizes, color=rule.color, label=rule.title)
        slowest = 0.5 if cell.slows else 1 / cell.spread
        target = BATCH_MAX * (slowest - cell.fixed) / (1 - cell.fixed)
        axis.axhline(target, color="gray", linestyle=":", linewidth=1.0)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("mega-batches")
        axis.set_ylim(0, BATCH_MAX * 1.08)
    axes[0][0].set_ylabel("rows in a batch")
    save(figure, "batch_rules", axes[0][0], columns=3)


HEAD = """# Rules of batch sizes

Written by `benchmarks/papers/batch_rules.py`, whose head says what is simulated; every run is a
row of [batch_rules.csv](batch_rules.csv). The rules are those of
[batch_rules.py](../../../daskxml/strategies/batch_rules.py); what follows is
[decision 20](../../../docs/decisions/0020-batch-rule.md).

![batch sizes over mega-batches](batch_rules.png)

## By the jitter of each batch

Over 2, 4 and 8 workers, without a fixed cost of a batch and with a quarter; unequal workers are
1.32, 2 and 4 times apart, where sizes within the bounds can make them equal at all. *Least size*:
the smallest of any of the equal workers in 200 mega-batches. *Updates apart*: of the worker with
the most and the one with the fewest, mean of a run's mega-batches from the eleventh on (from the
eleventh after the change, where a worker slows down to a half); the mean and the worst of all runs,
for slowed ones the worst. *Busy*: the least share of all workers' time between two merges in which
they step.

"""


def main() -> None:
    """Simulate, and write everything."""
    rows = []
    for cell in cells():
        rows.append(score(cell, cell.run()))
        print(rows[-1], flush=True)
    write_csv(RESULTS / "batch_rules.csv", rows)
    text = (
        f"{HEAD}{summary(rows)}\n\n## Whole mega-batches that are slower\n\n"
        "Equal workers, each slower or faster by 8 % for all of a mega-batch, which no mean over\n"
        "its batches takes away: the least size over b_max in 200 mega-batches.\n\n"
        f"{noisy()}\n"
    )
    (RESULTS / "batch_rules.md").write_text(text)
    print(text)
    draw()


if __name__ == "__main__":
    main()
