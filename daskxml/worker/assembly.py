"""The whole model of a run whose workers each have a part of the labels: put together in files.

Each worker writes what it holds to a file of its own; one of them then fills the pages of an
ordinary checkpoint, or of an ordinary model. No process holds the whole of it in memory.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from daskxml.core.arrays import Array
from daskxml.core.errors import ModelError
from daskxml.models.network.partitioned import LabelOrder
from daskxml.models.network.spec import Layout, ModelSpec
from daskxml.models.store import ModelHeader, assembling_model
from daskxml.models.tensors import read_tensors, write_tensors
from daskxml.records import checkpoint
from daskxml.worker.partitioned_worker import PartitionedWorker

MODEL_PARTS = "model.parts"  # in the run's directory, while the model is written
CURRENT, BEST = "current", "best"  # models of which workers hold parts
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
    if name in (CURRENT, BEST) and not is_whole(name, held):
        raise ModelError(
            "no worker has some of the labels any more: resume the run from its last checkpoint"
        )


def is_whole(name: str, held: Sequence[Held]) -> bool:
    """Whether all together have every label of a model."""
    having = [each for each in held if f"lower.{name}" in each]
    parts = range(len(having[0]["cuts"]) - 1 if having else 1)
    return all(any(f"{part}.{name}.bias" in each for each in having) for part in parts)


def has_whole(name: str, writer: PartitionedWorker, held: Sequence[Held]) -> bool:
    """Whether `fill` finds every label of a model."""
    is_stored = name == BEST and writer.best_stored is not None
    return is_stored or is_whole(name, held)


def fill(
    views: Mapping[str, Array], name: str, writer: PartitionedWorker, held: Sequence[Held]
) -> None:
    """Do as `assemble`; a best model that a checkpoint has is read from there by ``writer`` alone.

    Workers that joined since do not have it, but the first of all workers does.
    """
    if name == BEST and writer.best_stored is not None:
        for key, array in Layout(writer.spec).views(writer.best_stored).items():
            views[key][...] = array
    else:
        assemble(views, name, writer.spec, writer.order, held)


def write_held(
    worker: PartitionedWorker, folder: str, number: int, models: Sequence[str], *, with_copies: bool
) -> None:
    """Write what a worker holds of the last model, and of the best one, to files of its own.

    Raises
    ------
    ModelError
        If they cannot be written.
    """
    place = checkpoint.make_folder(Path(folder))
    for name in models:
        if name == BEST:
            held = worker.held_of_best()
        else:
            held = worker.held_arrays(with_copies=with_copies)
        if held:
            write_tensors(place / f"{number}.{name}.safetensors", held, {})


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
    return [read_tensors(path, verify=False, writable=False)[0] for path in paths]


def assemble_checkpoint(
    writer: PartitionedWorker, run_dir: str, megabatch: int, session: str, keep: int
) -> str:
    """Write the checkpoint from the files of the workers; return its path."""
    layout, held = Layout(writer.spec), _read_held(parts_folder(run_dir, megabatch))
    found = {key[6:] for each in held for key in each if key.startswith("lower.")} - {BEST}
    names = sorted(found) + [BEST] * has_whole(BEST, writer, held)  # it may be lost with workers
    shapes: dict[str, tuple[tuple[int, ...], str]] = dict.fromkeys(
        names, ((layout.size,), "float32")
    )
    steps = [each["steps"] for each in held if "steps" in each]
    if steps:
        shapes["steps"] = (1,), "int64"
    writing = checkpoint.assembling_checkpoint(run_dir, megabatch, shapes, session, keep)
    with writing as arrays:
        for name in names:
            fill(layout.views(arrays[name]), name, writer, held)
        if steps:
            arrays["steps"][:] = steps[0]
    return str(Path(run_dir) / checkpoint.FOLDER / f"{megabatch:06d}.safetensors")


def model_of(header: ModelHeader) -> str:
    """Return which model a header describes: the last one, or the best."""
    return BEST if "best_megabatch" in header.training else CURRENT


def assemble_model(writer: PartitionedWorker, run_dir: str, header: ModelHeader) -> None:
    """Write the model from the files of the workers."""
    folder = parts_folder(run_dir, None)
    with assembling_model(run_dir, header, writer.label_counts) as views:
        fill(views, model_of(header), writer, _read_held(folder))
    shutil.rmtree(folder, ignore_errors=True)
