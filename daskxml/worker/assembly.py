"""The whole model of a run whose workers each have a part of the labels: put together in files.

Each worker writes what it holds to a file of its own; one of them then fills the pages of an
ordinary checkpoint, or of an ordinary model. No process holds the whole of it in memory.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.core.arrays import Array
from daskxml.core.errors import ModelError
from daskxml.model.partitioned import LabelOrder
from daskxml.model.spec import Layout, ModelSpec
from daskxml.model.store import ModelHeader, assembling_model
from daskxml.model.tensors import read_tensors, write_tensors
from daskxml.records import checkpoint
from daskxml.worker.partitioned_worker import PartitionedWorker

MODEL_PARTS = "model.parts"  # in the run's directory, while the model is written
Held = Mapping[str, Array]


def assemble(
    views: Mapping[str, Array], name: str, spec: ModelSpec, order: LabelOrder, held: Sequence[Held]
) -> None:
    """Write what all workers hold into the arrays of the whole model.

    Parameters
    ----------
    views
        Of the model, or of moments, by parameter; zero where nobody has moments.
    name
        What it is: ``current``, or the moments' name.
    spec, order
        Of the whole model, and of its labels.
    held
        What `PartitionedWorker.held_arrays` returned, of each.

    Raises
    ------
    ModelError
        If nobody has some labels of the model.
    """
    having = [each for each in held if f"lower.{name}" in each]
    missing = set(range(len(having[0]["cuts"]) - 1)) if having else {0}
    for each in having:
        for key, slot in Layout(spec).slots.items():
            if not key.startswith("output."):
                found = each[f"lower.{name}"][slot.offset : slot.offset + slot.size]
                views[key][...] = found.reshape(slot.shape)
        for index, (start, stop) in enumerate(itertools.pairwise(each["cuts"].tolist())):
            if f"{index}.{name}.weight" in each:
                for kind in ("weight", "bias"):
                    views[f"output.{kind}"][order.labels[start:stop]] = each[
                        f"{index}.{name}.{kind}"
                    ]
                missing.discard(index)
    if missing and name == "current":
        raise ModelError(
            "no worker has some of the labels any more: resume the run from its last checkpoint"
        )


def write_held(worker: PartitionedWorker, folder: str, number: int, *, with_copies: bool) -> None:
    """Write what a worker holds to a file of its own."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    held = worker.held_arrays(with_copies=with_copies)
    if held:
        write_tensors(Path(folder) / f"{number}.safetensors", held, {})


def parts_folder(run_dir: str, megabatch: int | None) -> str:
    """Return where the files of the workers lie, for a checkpoint or for the model."""
    if megabatch is None:
        return str(Path(run_dir) / MODEL_PARTS)
    return str(Path(run_dir) / checkpoint.FOLDER / f"{megabatch:06d}")


def clear_parts(run_dir: str, megabatch: int | None) -> None:
    """Remove what an attempt that failed has left."""
    shutil.rmtree(parts_folder(run_dir, megabatch), ignore_errors=True)


def _read_held(folder: str) -> list[Held]:
    paths = sorted(Path(folder).glob("*.safetensors"))
    return [read_tensors(path, verify=False)[0] for path in paths]


def assemble_checkpoint(
    spec: ModelSpec, seed: int, run_dir: str, megabatch: int, session: dict[str, Any], keep: int
) -> str:
    """Write the checkpoint from the files of the workers; return its path."""
    order, layout = LabelOrder.of(spec.labels, seed), Layout(spec)
    held = _read_held(parts_folder(run_dir, megabatch))
    names = sorted({key[6:] for each in held for key in each if key.startswith("lower.")})
    shapes: dict[str, tuple[tuple[int, ...], str]] = dict.fromkeys(
        names, ((layout.size,), "float32")
    )
    steps = [each["steps"] for each in held if "steps" in each]
    if steps:
        shapes["steps"] = (1,), "int64"
    writing = checkpoint.assembling_checkpoint(run_dir, megabatch, shapes, session, keep)
    with writing as arrays:
        for name in names:
            assemble(layout.views(arrays[name]), name, spec, order, held)
        if steps:
            arrays["steps"][:] = steps[0]
    return str(Path(run_dir) / checkpoint.FOLDER / f"{megabatch:06d}.safetensors")


def assemble_model(run_dir: str, header: ModelHeader, seed: int, label_counts: Array) -> None:
    """Write the model from the files of the workers."""
    assert isinstance(header.spec, ModelSpec)
    folder, order = parts_folder(run_dir, None), LabelOrder.of(header.spec.labels, seed)
    with assembling_model(run_dir, header, label_counts) as views:
        assemble(views, "current", header.spec, order, _read_held(folder))
    shutil.rmtree(folder, ignore_errors=True)
