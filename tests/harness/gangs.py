"""Workers with rows for gangs, and gangs for them, small enough to do by hand."""

import numpy as np

from daskxml.collectives.combine import CombineConfig
from daskxml.data.rows import label_counts
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.models.network.spec import ModelSpec
from daskxml.session.commands import MergeReplicas, RunWork
from daskxml.session.ledger import Span, cut_batches
from daskxml.worker.gang_programs import gang_program, needs_server, server_program
from daskxml.worker.merge_program import merge_program
from daskxml.worker.training_worker import TrainingWorker
from harness.together import run_together
from harness.worker_settings import changed, make_settings

FEATURES, LABELS, ROWS = 60, 40, 120
SPEC = ModelSpec(features=FEATURES, labels=LABELS, hidden=(16,))
SETTINGS = make_settings(SPEC, rows=ROWS)
DATA = generate(SyntheticSpec(rows=ROWS, test_rows=30, features=FEATURES, labels=LABELS, seed=4))


def make_workers(count, **changes):
    """Return workers with the same model and every row."""
    made = [TrainingWorker(changed(SETTINGS, **changes)) for _ in range(count)]
    for worker in made:
        worker.initialize()
        worker.rows.hold_all([DATA[0]], [DATA[1]])
        worker.count_labels(label_counts(DATA[0].labels, LABELS))
    return made


def make_gang(pattern, rows, batch_rows, *, lrs=None, first=0, begins=True, rewinds=False):
    """Return a gang in which rank i has rows[i] rows, one rank's after the other's."""
    starts = first + np.concatenate([[0], np.cumsum(rows)])
    batches = tuple(
        cut_batches([Span(0, 0, int(start), int(stop))] if stop > start else [], size)
        for start, stop, size in zip(starts[:-1], starts[1:], batch_rows, strict=True)
    )
    names = tuple("abcdefgh"[: len(rows)])
    rates = tuple(lrs or [0.5] * len(rows))
    return RunWork(1, names, batches, rates, pattern, begins, rewinds)


def run_gang(group, gang, hosts=None):
    """Run a gang in one process; return the results of its workers, then the server's."""
    hosts = hosts or ("here",) * len(group)
    programs = [gang_program(m, gang, rank, hosts, {}) for rank, m in enumerate(group)]
    if needs_server(gang.pattern):
        programs.append(server_program(group[0], gang))
    return run_together(programs)


def merge(group, weights, momentum=0.0, generation=1, hosts=None):
    """Merge and commit."""
    merging = MergeReplicas(generation, dict(zip("abcdefgh", weights, strict=False)), momentum)
    hosts = hosts or ("here",) * len(group)
    means = run_together([merge_program(m, merging, r, hosts) for r, m in enumerate(group)])
    for worker in group:
        worker.commit(generation)
    return means


def adasum(**options):
    return {"combine": CombineConfig(rule="adasum", **options)}
