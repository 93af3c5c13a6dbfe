"""``daskxml predict``: write a trained model's best labels of every row."""

from __future__ import annotations

import os
from pathlib import Path

import scipy.sparse

from daskxml.cli.arguments import Options
from daskxml.cli.rows import read_partitions
from daskxml.errors import InputError
from daskxml.model.trained import Model


def run(options: Options) -> int:
    """Write ``(rows, labels)`` scores, `top_k` a row, as a SciPy CSR file."""
    model = Model.load(options.model)
    out = Path(options.out)
    if not out.parent.is_dir():  # known before the work is done
        raise InputError(f"cannot be written: there is no directory {out.parent}", str(out))
    parts = [model.predict(part, options.top_k) for part in read_partitions(model, options.data)]
    scores = scipy.sparse.vstack(parts, format="csr")
    _write(out, scores)
    rows, labels = scores.shape
    print(f"wrote {rows:,} rows x {labels:,} labels, {scores.nnz:,} scores, to {out}")
    return 0


def _write(out: Path, scores: scipy.sparse.csr_matrix) -> None:
    """Replace the file only by a whole one."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            scipy.sparse.save_npz(file, scores)
        partial.replace(out)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", str(out)) from error
    finally:
        partial.unlink(missing_ok=True)
