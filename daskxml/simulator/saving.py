"""Checkpoints of a simulated run, whose workers are all in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daskxml.errors import ModelError
from daskxml.training import checkpoint, orders
from daskxml.training.member import Member


def save(
    run_dir: Path,
    order: orders.CheckpointOrder,
    session: dict[str, Any],
    members: Mapping[str, Member],
    keep: int,
) -> Path:
    """Write a checkpoint, what each worker alone knows first; add to ``session`` whose is which.

    Raises
    ------
    ModelError
        If it cannot be written; nothing of it is left.
    """
    session["local"] = {}
    try:
        for number, (name, member) in enumerate(members.items()):
            if state := member.local_state():
                checkpoint.write_local(run_dir, order.megabatch, number, state)
                session["local"][name] = number
        _, models = members[order.worker].host_models()
        return checkpoint.write_checkpoint(run_dir, order.megabatch, models, session, keep)
    except ModelError:
        checkpoint.drop_local(run_dir, order.megabatch)
        raise
