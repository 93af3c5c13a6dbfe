"""Train on the same rows from files of several kinds, from matrices and from Dask arrays."""

import json
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask.distributed import Client

import daskxml

ROWS, FEATURES, LABELS = 600, 40, 8
SETTINGS = {
    "model": {"hidden": [16]},
    "strategy": {"batch_max": 32, "megabatch_batches": 8, "lr": 0.5},
    "training": {"epochs": 10},
    "data": {"feature_base": 0, "validation": 0.2},
    "evaluation": {"k": [1], "every": 5},
}


def matrices() -> tuple[sp.csr_array, sp.csr_array]:
    """Return rows whose features 0 to 7 tell their labels."""
    rng = np.random.default_rng(0)
    X = rng.random((ROWS, FEATURES)) < 0.2
    return sp.csr_array(X, dtype=np.float32), sp.csr_array(X[:, :LABELS], dtype=np.float32)


def write_files(folder: Path, X: sp.csr_array, Y: sp.csr_array) -> list[Path]:
    """Write the rows as JSON lines, CSV, npz, and as Parquet where pyarrow is installed."""
    rows = [
        {
            "labels": Y[[i]].indices.tolist(),
            "indices": x.indices.tolist(),
            "values": x.data.tolist(),
        }
        for i, x in enumerate(X[[i]] for i in range(ROWS))
    ]
    jsonl, csv, npz = folder / "rows.jsonl", folder / "rows.csv", folder / "X.npz"
    jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["labels,indices,values"]
    for row in rows:
        labels = ",".join(map(str, row["labels"]))
        ids, values = (" ".join(map(str, row[name])) for name in ("indices", "values"))
        lines.append(f'"{labels}",{ids},{values}')
    csv.write_text("\n".join(lines) + "\n")
    sp.save_npz(npz, X, compressed=False)  # so that it is read in parts
    sp.save_npz(folder / "Y.npz", Y, compressed=False)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return [jsonl, csv, npz]
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return [jsonl, csv, npz, folder / "rows.parquet"]


def main(client: Client, folder: Path) -> dict[str, float]:
    """Train on each kind, and return P@1 on the rows that are held out."""
    X, Y = matrices()
    given: dict = {path.name: path for path in write_files(folder, X, Y)}
    given["matrices"] = daskxml.Matrices(X, Y)
    dense = (da.from_array(matrix.toarray(), chunks=(200, -1)) for matrix in (X, Y))
    given["Dask arrays"] = daskxml.Matrices(*dense)
    found = {}
    for name, rows in given.items():
        run = daskxml.train(SETTINGS, client=client, train=rows)
        found[name] = run.metrics["P@1"]
        print(f"{name:<14}P@1 {found[name]:.3f}")
    return found


if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1) as own:
        main(own, Path(sys.argv[1]))
