"""Documents to TF-IDF rows: a Dask cluster beside scikit-learn's `TfidfVectorizer`, in turns.

Run ``python benchmarks/speed/text.py [--documents N] [--workers N] [--turns N]``. The corpus is
generated: words by Zipf's law, from 5 to 200 of them a document, in JSON lines. Both readers begin
with the file; each turn runs in a process of its own, which tells its time and its largest memory.
The rows are compared entry by entry.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

SETTINGS: dict[str, Any] = {"ngram_range": (1, 1), "min_df": 2, "sublinear_tf": True}
WORDS = 200_000  # that the corpus draws from
KIB = 1024


def generate(path: Path, documents: int, seed: int = 0) -> None:
    """Write documents with a name of a label each."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 200, documents)
    with path.open("w") as file:
        for length in lengths.tolist():
            ids = (WORDS ** rng.random(length)).astype(np.int64)
            text = " ".join(f"w{i:x}" for i in ids.tolist())
            file.write(json.dumps({"text": text, "labels": [f"tag {ids[0] % 500}"]}) + "\n")


def peak_mib() -> float:
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB


def scikit_learn(path: Path, out: Path) -> dict[str, Any]:
    """Vectorize in one process."""
    import scipy.sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    began, cpu = time.perf_counter(), time.process_time()
    with path.open() as file:
        texts = [json.loads(line)["text"] for line in file]
    rows = TfidfVectorizer(**SETTINGS).fit_transform(texts)
    found = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    found |= {"peak_mib": peak_mib(), "client_growth_mib": None}
    scipy.sparse.save_npz(out, scipy.sparse.csr_matrix(rows), compressed=False)
    return found


def on_cluster(path: Path, out: Path, workers: int) -> dict[str, Any]:
    """Vectorize on a local cluster of processes, which is there before the clock starts."""
    from dask.distributed import Client, LocalCluster

    import daskxml

    vectorize = daskxml.vectorize  # imported before the clock starts
    with (
        LocalCluster(workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.run(_import_text)
        cpu, before = sum(client.run(time.process_time).values()), peak_mib()
        began = time.perf_counter()
        rows = vectorize(str(path), client=client, **SETTINGS)
        seconds = time.perf_counter() - began
        found = {
            "seconds": seconds,
            "cpu_s": sum(client.run(time.process_time).values()) - cpu,
            "peak_mib": max(client.run(peak_mib).values()),
            "client_growth_mib": peak_mib() - before,
        }
        _save(client.gather(rows.partitions), out)
    return found


def _import_text() -> None:
    import sklearn.feature_extraction.text

    import daskxml.api.texts

    assert sklearn
    assert daskxml


def _save(partitions: list[Any], out: Path) -> None:
    import scipy.sparse

    from daskxml.data.rows import to_scipy

    rows = scipy.sparse.vstack([to_scipy(part.features) for part in partitions], format="csr")
    scipy.sparse.save_npz(out, rows, compressed=False)


def difference(left: Path, right: Path) -> dict[str, Any]:
    """Compare two matrices, which must have the same entries."""
    import scipy.sparse

    one, other = scipy.sparse.load_npz(left), scipy.sparse.load_npz(right)
    one.sort_indices()
    other.sort_indices()
    same = one.shape == other.shape and (one.indptr == other.indptr).all()
    same = bool(same and (one.indices == other.indices).all())
    largest = float(np.abs(one.data / other.data - 1.0).max()) if same else None
    return {
        "rows": one.shape[0],
        "words": one.shape[1],
        "nonzeros": int(one.nnz),
        "same_entries": same,
        "largest_relative_difference": largest,
    }


def turn(*arguments: Any) -> dict[str, Any]:
    """Run one reader in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs=3, metavar=("READER", "FILE", "OUT"))
    options = parser.parse_args()
    if options.only:
        reader, path, out = options.only
        given = (Path(path), Path(out))
        alone = reader == "scikit-learn"
        found = scikit_learn(*given) if alone else on_cluster(*given, options.workers)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        generate(path, options.documents)
        outs = {name: Path(folder) / f"{name}.npz" for name in ("scikit-learn", "daskxml")}
        more = ("--workers", options.workers)
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in outs}
        for _ in range(options.turns):
            for name, out in outs.items():
                turns[name].append(turn("--only", name, path, out, *more))
        compared = difference(outs["daskxml"], outs["scikit-learn"])
        rows = [
            {
                "reader": name,
                "best_s": min(it["seconds"] for it in found),
                "median_s": statistics.median(it["seconds"] for it in found),
                "documents_per_s": options.documents / min(it["seconds"] for it in found),
                "cpu_s": min(it["cpu_s"] for it in found),
                "peak_mib": max(it["peak_mib"] for it in found),
                "client_growth_mib": found[-1]["client_growth_mib"],
            }
            for name, found in turns.items()
        ]
        write_result(
            "text",
            rows,
            documents=options.documents,
            workers=options.workers,
            text_mib=path.stat().st_size / 2**20,
            settings={**SETTINGS, "ngram_range": list(SETTINGS["ngram_range"])},
            equality=compared,
            turns=turns,
        )


if __name__ == "__main__":
    main()
