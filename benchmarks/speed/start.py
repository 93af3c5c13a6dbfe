"""What a user waits for: installation, the first run, and later ones beside omikuji and PECOS.

    python benchmarks/speed/start.py FOLDER [--sets bibtex] [--peers PLACE/bin/python] \
    [--repeats 5]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. A virtual environment is made in a
temporary folder, and this checkout is installed there by pip, which compiles the kernels. Then
whole commands and scripts run in turns, each in a new process that finds no other daskxml: they
read the text, train, and rank the test rows. The first run of `best` reads everything from the
disk; later ones are warm. The first answer of a process is timed from after it has loaded a model.
The peers' scripts do what their documentation says (`PEERS`); ``--peers`` is an interpreter that
has both. Pip takes packages from its cache where it has them. Wall time depends on the machine's
load, which is in the table, as is processor time. Writes
``results/first_minute.json``.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

PEERS = {
    "omikuji": """
import sys
import omikuji
train, test = sys.argv[1:]
model = omikuji.Model.train_on_data(train, omikuji.Model.default_hyper_param())
hits = rows = 0
with open(test) as file:
    next(file)
    for line in file:
        labels, *pairs = line.rstrip("\\n").split(" ")
        row = [(int(i), float(v)) for i, v in (pair.split(":") for pair in pairs)]
        best = model.predict(row, top_k=5)[0][0]
        hits, rows = hits + (str(best) in labels.split(",")), rows + 1
print("P@1", hits / rows)
""",
    "PECOS": """
import sys
import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file
from sklearn.preprocessing import normalize
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel

def read(path):
    with open(path, "rb") as file:
        rows, features, labels = map(int, file.readline().split())
        X, names = load_svmlight_file(file, n_features=features, multilabel=True, zero_based=True)
    places = [(i, int(label)) for i, row in enumerate(names) for label in row]
    Y = sp.csr_matrix((np.ones(len(places), np.float32), np.array(places).T), (rows, labels))
    return sp.csr_matrix(normalize(X), dtype=np.float32), Y

(X, Y), (T, truth) = map(read, sys.argv[1:])
features = LabelEmbeddingFactory.create(Y, X, method="pifa")
chain = Indexer.gen(features, indexer_type="hierarchicalkmeans")
model = XLinearModel.train(X, Y, C=chain)
found = model.predict(T, only_topk=5)
best = np.array([row.indices[row.data.argmax()] for row in found])
print("P@1", truth[np.arange(len(best)), best].mean())
""",
}

ANSWER = """
import sys, time
import daskxml, scipy.sparse
model = daskxml.load(sys.argv[1])
row = scipy.sparse.csr_matrix(([1.0], ([0], [0])), (1, model.spec.features))
begun_s = time.perf_counter()
model.predict_top_k(row, 5)
print(time.perf_counter() - begun_s)
"""

ROOT = Path(__file__).parents[2]


def timed(command: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Run a command; return its lines, and what it took.

    Raises
    ------
    SystemExit
        If it fails.
    """
    plain = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    plain = {name: value for name, value in plain.items() if not name.startswith("NUMBA_")}
    begun_s, before_s = time.monotonic(), cpu_s()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env=plain, cwd=tempfile.gettempdir(),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode:
        sys.exit("\n".join(lines[-20:]))
    wall_s = time.monotonic() - begun_s
    took = {"wall s": wall_s, "cpu s": cpu_s() - before_s, "load": os.getloadavg()[0]}
    return lines, {name: round(value, 2) for name, value in took.items()}


def cpu_s() -> float:
    """Return the processor time of all processes that have ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Install, train, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", type=lambda text: text.split(","), default=["bibtex"])
    parser.add_argument("--peers", help="an interpreter that has omikuji and libpecos")
    parser.add_argument("--repeats", type=int, default=5, help="of warm runs")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="first-minute-"))
    bin_folder = home / "venv/bin"
    _, made = timed([sys.executable, "-m", "venv", str(home / "venv")])
    _, installed = timed([str(bin_folder / "pip"), "install", "--quiet", str(ROOT)])
    rows = [{"step": "make an environment", **made}, {"step": "pip install", **installed}]
    for number, data in enumerate(options.sets):
        scripts = commands(options, data, home, bin_folder)
        if not number:
            rows.append({"step": "best, first run", **run(scripts["daskxml train best"], home)})
            answer = [str(bin_folder / "python"), "-c", ANSWER, str(home / "run")]
            (line,), took = timed(answer)
            rows.append({"step": "first answer of a process", **took, "wall s": float(line)})
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in scripts}
        for _ in range(options.repeats):
            for name, command in scripts.items():
                found[name].append(run(command, home))
        for name, turns in found.items():
            middle = {key: round(statistics.median(t[key] for t in turns), 3) for key in turns[0]}
            rows.append({"step": f"{name}, warm", "data": data, "turns": options.repeats, **middle})
    write_result("first_minute", [{"data": "", "turns": 1, "P@1": None, **row} for row in rows])
    shutil.rmtree(home)


def commands(
    options: argparse.Namespace, data: str, home: Path, bin_folder: Path
) -> dict[str, list[str]]:
    """Return a command for each row of the table of a set."""
    stem = options.folder.absolute() / data
    parts = [Path(f"{stem}.{part}.txt.gz") for part in ("train", "test")]
    train = [str(bin_folder / "daskxml"), "train"]
    rows = [str(parts[0]), "--test", str(parts[1]), "--out", str(home / "run")]
    names = ["tree", "best"] + ["network"] * (data == options.sets[0])
    found = {f"daskxml train {name}": [*train, name, *rows] for name in names}
    plain = [home / path.stem for path in parts]
    for path, text in zip(parts, plain, strict=True):
        text.write_bytes(gzip.decompress(path.read_bytes()))
    for name, script in PEERS.items() if options.peers else ():
        found[name] = [options.peers, "-c", script, *map(str, plain)]
    return found


def run(command: list[str], home: Path) -> dict[str, Any]:
    """Run a command of the table; return what it took and reached."""
    shutil.rmtree(home / "run", ignore_errors=True)
    lines, took = timed(command)
    metric = next(line for line in reversed(lines) if "P@1" in line)
    return {**took, "P@1": round(float(metric.split("P@1")[1].split()[0]), 4)}


if __name__ == "__main__":
    main()
