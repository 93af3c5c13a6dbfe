"""A run repeated from its history alone, in one process, as slowly and plainly as possible.

What comes out must be the model that the cluster made: so every row that the history lists was
counted in it, and none that it does not list.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import daskxml
from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Partition
from daskxml.data.blocks import read_header
from daskxml.data.formats import plan_files, read_block
from daskxml.data.parse import Dialect
from daskxml.data.reading import Recipe, join_pieces, shuffle_key, split_block
from daskxml.data.rows import to_scipy
from daskxml.models.network.spec import Layout
from daskxml.models.trained import Model
from daskxml.session.commands import MergeReplicas, RunWork
from daskxml.session.ledger import Span, cut_batches
from daskxml.session.placement import Placement
from daskxml.strategies.protocol import SyncPattern
from daskxml.worker.gang_programs import gang_program, needs_server, server_program
from daskxml.worker.merge_program import merge_program
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.training_worker import TrainingWorker
from harness.together import run_together

History = Sequence[Mapping[str, Any]]


def flat_model(run: daskxml.Run) -> Any:
    """Return the parameters of a run's network where its layout has them, as replicas do."""
    layout = Layout(run.model.spec)
    flat = np.zeros(layout.size, dtype=np.float32)
    for name, view in layout.views(flat).items():
        view[...] = run.model.parameters[name]
    return flat


def shuffled_rows(path: Path, seed: int) -> Partition:
    """All training rows in their shuffled order."""
    header = read_header(str(path))
    assert header is not None
    dialect = Dialect(features=header.features, labels=header.labels)
    (block,) = plan_files([str(path)], 2**30)
    recipe = Recipe(
        rows=header.rows,
        parts=1,
        shuffle_key=shuffle_key(seed),
        features=header.features,
        labels=header.labels,
        shift=0,
        normalize="l2",
    )
    rows = read_block(block, dialect)
    return join_pieces(split_block(rows, 0, rows.rows, recipe), 0, recipe)


def lease_rate(
    config: RunConfig, worker: Mapping[str, Any], batches: Sequence[Sequence[Span]]
) -> tuple[float, bool]:
    """Return the rate of a lease, and whether that of a smaller batch is in proportion."""
    rows = sum(span.rows for batch in batches for span in batch)
    is_scaled = getattr(config.make_strategy(), "scales_parts", False)
    share = min(1.0, rows / worker["batch_rows"]) if is_scaled else 1.0
    return float(worker["lr"] * share), is_scaled


def make_training_worker(config: RunConfig, rows: Partition) -> TrainingWorker:
    """Return a worker that holds all rows, as one stream."""
    placement = Placement(True, (rows.rows,), ())
    spec = config.model_spec(rows.features.columns, rows.labels.columns)
    facts = DataFacts(spec=spec, rows=rows.rows, stream_rows=placement.streams(), row_nonzeros=9)
    training_worker = TrainingWorker(WorkerSettings.of(config, facts, WorkerSlot()))
    training_worker.initialize()
    training_worker.rows.hold_all([rows], [])
    return training_worker


def replayed_model(path: Path, values: Mapping[str, Any], history: History) -> Any:
    """Return the flat model that the history leads to."""
    config = load_run_config(values)
    rows = shuffled_rows(path, config.run.seed)
    training_worker = make_training_worker(config, rows)
    current = np.array(training_worker.current)
    previous = current.copy()
    for row in history:
        merged = np.zeros(current.shape, dtype=np.float64)
        for worker in row["workers"].values():
            training_worker.set_model(current, previous, 0)
            for lease in worker["leases"]:
                batches = cut_batches([Span(*span) for span in lease], worker["batch_rows"])
                rate, is_scaled = lease_rate(config, worker, batches)
                work = RunWork(1, ("",), (batches,), (rate,), scales_parts=is_scaled)
                for some, lr in work.rated:
                    training_worker.lease(some, lr, {})
            merged += worker["weight"] * training_worker.replica.flat.astype(np.float64)
        merged += row["momentum"] * (current.astype(np.float64) - previous)
        current, previous = merged.astype(np.float32), current
    return current


def training_loss(path: Path, model: Model) -> float:
    """The mean softmax loss of a model with one hidden layer over all training rows, in float64."""
    rows = shuffled_rows(path, 0)
    weights = {name: array.astype(np.float64) for name, array in model.parameters.items()}
    x, y = to_scipy(rows.features).toarray(), to_scipy(rows.labels).toarray()
    hidden = np.maximum(x @ weights["hidden0.weight"] + weights["hidden0.bias"], 0.0)
    logits = hidden @ weights["output.weight"].T + weights["output.bias"]
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return float(-(log_p * y / np.maximum(y.sum(axis=1, keepdims=True), 1.0)).sum() / rows.rows)


def replayed_gangs(
    path: Path, values: Mapping[str, Any], history: History, pattern: SyncPattern
) -> Any:
    """Return the flat model that gangs lead to, whose programs run in this process.

    Every gang must have rows for all of its workers, in full steps.
    """
    config = load_run_config(values)
    rows = shuffled_rows(path, config.run.seed)
    names = {name for row in history for name in row["workers"]}
    workers = {name: make_training_worker(config, rows) for name in names}
    current = np.array(next(iter(workers.values())).current)
    for row in history:
        group = [workers[name] for name in row["workers"] if row["workers"][name]["rows"]]
        working = {n: w for n, w in row["workers"].items() if w["rows"]}
        for training_worker in group:
            training_worker.set_model(current, current, row["megabatch"] - 1)
        gangs = zip(*(worker["leases"] for worker in working.values()), strict=True)
        for number, leases in enumerate(gangs):
            command = _gang_command(number, leases, working, pattern)
            run_gang(group, command)
        weights = {name: float(rank == 0) for rank, name in enumerate(working)}
        merge = MergeReplicas(row["megabatch"], weights, 0.0)
        hosts = ("here",) * len(group)
        run_together([merge_program(m, merge, rank, hosts) for rank, m in enumerate(group)])
        current = group[0].scratch.copy()
    return current


def _gang_command(
    number: int, leases: Any, working: Mapping[str, Mapping[str, Any]], pattern: SyncPattern
) -> RunWork:
    parts = zip(leases, working.values(), strict=True)
    return RunWork(
        number=number,
        workers=tuple(working),
        batches=tuple(
            cut_batches([Span(*s) for s in spans], w["batch_rows"]) for spans, w in parts
        ),
        lrs=tuple(worker["lr"] for worker in working.values()),
        pattern=pattern,
        begins=number == 0,
        rewinds=False,
    )


def run_gang(group: Sequence[TrainingWorker], command: RunWork) -> None:
    """Run a gang's programs in this process."""
    hosts = ("here",) * len(group)
    programs = [
        gang_program(training_worker, command, rank, hosts, {})
        for rank, training_worker in enumerate(group)
    ]
    if needs_server(command.pattern):
        programs.append(server_program(group[0], command))
    run_together(programs)
