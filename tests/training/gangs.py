"""Members with rows for gangs, and orders for them, small enough to do by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from daskxml.combine import CombineConfig
from daskxml.combine.lockstep import run_together
from daskxml.data.rows import label_counts
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.model.spec import ModelSpec
from daskxml.optim import OptimizerConfig
from daskxml.training.ledger import Span, cut_batches
from daskxml.training.member import Member
from daskxml.training.merging import merge_program
from daskxml.training.orders import GangOrder, MergeOrder
from daskxml.training.programs import gang_program, needs_server
from daskxml.training.server import server_program
from daskxml.training.settings import MemberSettings

FEATURES, LABELS, ROWS = 60, 40, 120
SPEC = ModelSpec(features=FEATURES, labels=LABELS, hidden=(16,))
SETTINGS = MemberSettings(
    spec=SPEC,
    optimizer=OptimizerConfig(),
    seed=11,
    max_batch_rows=32,
    logits_budget_bytes=1 << 20,
    evaluation_rows=12,
    ks=(1, 3),
    propensity_a=0.55,
    propensity_b=1.5,
    training_rows=ROWS,
    row_nonzeros=8,
    stream_rows=(ROWS,),
    device="cpu",
    threads=1,
)
DATA = generate(SyntheticSpec(rows=ROWS, test_rows=30, features=FEATURES, labels=LABELS, seed=4))


def members(count, **changes):
    """Members that start from the same model and hold every row."""
    made = [Member(replace(SETTINGS, **changes)) for _ in range(count)]
    for member in made:
        member.initialize()
        member.hold_all([DATA[0]], [DATA[1]])
        member.count_labels(label_counts(DATA[0].labels, LABELS))
    return made


def order(scheme, rows, batch_rows, *, lrs=None, first=0, begins=True, rewinds=False):
    """A gang in which rank i does rows[i] rows, one rank's after the other's."""
    starts = first + np.concatenate([[0], np.cumsum(rows)])
    batches = tuple(
        cut_batches([Span(0, 0, int(start), int(stop))] if stop > start else [], size)
        for start, stop, size in zip(starts[:-1], starts[1:], batch_rows, strict=True)
    )
    names = tuple("abcdefgh"[: len(rows)])
    rates = tuple(lrs or [0.5] * len(rows))
    return GangOrder(1, names, batches, rates, scheme, begins, rewinds)


def play(crew, gang, hosts=None):
    """Let a gang play in one process; return the results of its workers, then the server's."""
    hosts = hosts or ("here",) * len(crew)
    programs = [gang_program(m, gang, rank, hosts, {}) for rank, m in enumerate(crew)]
    if needs_server(gang.scheme):
        programs.append(server_program(crew[0], gang))
    return run_together(programs)


def merge(crew, weights, momentum=0.0, generation=1, hosts=None):
    """Merge and commit."""
    merging = MergeOrder(generation, dict(zip("abcdefgh", weights, strict=False)), momentum)
    hosts = hosts or ("here",) * len(crew)
    notes = run_together([merge_program(m, merging, r, hosts) for r, m in enumerate(crew)])
    for member in crew:
        member.commit(generation)
    return notes


def adasum(**options):
    return {"rule": "adasum", "combine": CombineConfig(rule="adasum", **options)}
