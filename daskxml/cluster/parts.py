"""The whole model of workers that each have a part of it: written by all, assembled by one."""

from __future__ import annotations

from collections.abc import Sequence

from daskxml.cluster.worker_group import (
    WorkerGroup,
    WorkerHandle,
    lost_any,
    raise_first_failure,
    remaining,
)
from daskxml.cluster.worker_plugin import run_worker
from daskxml.core.errors import ClusterError
from daskxml.models.store import ModelHeader
from daskxml.worker import assembly
from daskxml.worker.partitioned_worker import PartitionedWorker

ATTEMPTS = 4  # at letting all write, each ended by the loss of a worker


async def write_checkpoint(
    group: WorkerGroup, writer: WorkerHandle, run_dir: str, megabatch: int,
    session: str, keep: int, *, misses_owner: bool,
) -> str:  # fmt: skip
    """Write a checkpoint of the parts of all workers, assembled by ``writer``; return its path."""
    models = (assembly.CURRENT, assembly.BEST)
    await _write_all(group, writer, run_dir, megabatch, models, misses_owner)
    args = group.run, run_dir, megabatch, session, keep
    path: str = await group.ask(writer, "save", assemble_checkpoint, *args)
    return path


async def write_model(
    group: WorkerGroup, writer: WorkerHandle, run_dir: str, header: ModelHeader, *,
    misses_owner: bool,
) -> None:  # fmt: skip
    """Write the model of the parts of all workers, assembled by ``writer``."""
    await _write_all(group, writer, run_dir, None, (assembly.model_of(header),), misses_owner)
    await group.ask(writer, "model", assemble_model, group.run, run_dir, header)


async def _write_all(
    group: WorkerGroup, writer: WorkerHandle, run_dir: str, megabatch: int | None,
    models: tuple[str, ...], misses_owner: bool,
) -> None:  # fmt: skip
    """Let every worker write what it holds; if one is lost meanwhile, also its copies of others.

    Raises
    ------
    ClusterError
        If workers are lost again and again.
    """
    await group.ask(writer, "save", assembly.clear_parts, run_dir, megabatch)
    for _ in range(ATTEMPTS):
        workers: Sequence[WorkerHandle] = remaining(group.workers.values())
        misses_owner = misses_owner or len(workers) < len(group.workers)
        numbers = range(len(workers))
        args = [(group.run, run_dir, megabatch, n, models, misses_owner) for n in numbers]
        answers = await group.ask_each(workers, "save", write_held, args)
        raise_first_failure(answers)
        if not lost_any(answers):
            return
    raise ClusterError("workers were lost while they wrote the model; resume the run")


# ------------------------------------------------------------------------- tasks


def _worker(run: str) -> PartitionedWorker:
    worker = run_worker(run)
    assert isinstance(worker, PartitionedWorker)
    return worker


def write_held(
    run: str, run_dir: str, megabatch: int | None, number: int, models: tuple[str, ...],
    with_copies: bool,
) -> None:  # fmt: skip
    """Write what this worker holds."""
    folder = assembly.parts_folder(run_dir, megabatch)
    assembly.write_held(_worker(run), folder, number, models, with_copies=with_copies)


def assemble_checkpoint(run: str, run_dir: str, megabatch: int, session: str, keep: int) -> str:
    """Assemble a checkpoint; return its path."""
    return assembly.assemble_checkpoint(_worker(run), run_dir, megabatch, session, keep)


def assemble_model(run: str, run_dir: str, header: ModelHeader) -> None:
    """Assemble the model."""
    assembly.assemble_model(_worker(run), run_dir, header)
