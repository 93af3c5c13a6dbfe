"""k labels of each row chosen together: measures reached on test rows, beside xCOLUMNs.

    python -m venv PLACE && PLACE/bin/pip install xcolumns
    python benchmarks/quality/together.py FOLDER --peer PLACE/bin/python [--sets bibtex,delicious]

A tree is trained on 85 % of the training rows and calibrated on the others. Both choose among the
same 50 candidates of each test row by the same probabilities; seconds are of the second call, in
which nothing is compiled. *alone*: each row by itself, as one more of the held-out rows; xCOLUMNs'
rule for that is found by Frank and Wolfe's method on the held-out rows and their labels. Another
table has PSP@k by propensity among the candidates of the beam, and among all labels, of 1,000 rows;
and the expected calibration error of the best 20 and 5 labels of each test row. Writes
``results/together.json``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

SETS = "bibtex,delicious,stackex4-2k,citeuliket-8k,nvd-product"
MEASURES = ("macro-F1", "macro-recall", "coverage")
KS, CANDIDATES, FEW = (3, 5), 50, 1000


def xcolumns(folder: Path) -> None:
    """Choose by the peer; runs in an environment of its own."""
    from xcolumns import block_coordinate as bc
    from xcolumns import frank_wolfe as fw
    from xcolumns.metrics import macro_f1_score_on_conf_matrix

    test, held, truth = (sp.load_npz(folder / f"{name}.npz") for name in ("test", "held", "truth"))
    functions = {
        "macro-F1": bc.predict_optimizing_macro_f1_score_using_bc,
        "macro-recall": bc.predict_optimizing_macro_recall_using_bc,
        "coverage": bc.predict_optimizing_coverage_using_bc,
    }
    for k in KS:
        for measure, function in functions.items():
            for _ in range(2):
                begun_s = time.process_time()
                chosen = function(test, k, seed=0, init_y_pred="top")
                seconds = time.process_time() - begun_s
            sp.save_npz(folder / f"{measure}-{k}.npz", chosen)
            (folder / f"{measure}-{k}.txt").write_text(str(seconds))
        found = fw.find_classifier_using_fw(
            truth, held, macro_f1_score_on_conf_matrix, k, init_classifier="top", skip_tn=True,
            seed=0,
        )  # fmt: skip
        chosen = fw.predict_using_randomized_weighted_classifier(
            test, k, found.a, found.b, found.p, seed=0
        )
        sp.save_npz(folder / f"alone-{k}.npz", chosen)


def reached(chosen: Any, truth: Any) -> dict[str, float]:
    """Return the measures of chosen labels over the labels that test rows have."""
    chosen, truth = ((matrix > 0).astype(np.float64).tocsr() for matrix in (chosen, truth))
    hits, counts, rows = (
        np.asarray(m.sum(axis=0)).ravel() for m in (chosen.multiply(truth), chosen, truth)
    )
    has = rows > 0
    f1, recall = 2 * hits[has] / (counts + rows)[has], hits[has] / rows[has]
    found = {
        "macro-F1": f1.mean(),
        "macro-recall": recall.mean(),
        "coverage": (hits[has] > 0).mean(),
    }
    return {"P": hits.sum() / counts.sum(), **found}


def as_matrix(ids: Any, values: Any, labels: int) -> Any:
    there = ids >= 0
    entries = values[there], (np.nonzero(there)[0], ids[there])
    matrix = sp.csr_matrix(entries, shape=(ids.shape[0], labels), dtype=np.float32)
    matrix.sort_indices()
    return matrix


def measure_set(folder: Path, name: str, peer: str) -> list[dict[str, Any]]:
    """Return the rows of the tables of one set."""
    from dataclasses import replace

    import daskxml
    from daskxml.api.in_process import train_here
    from daskxml.data.rows import label_csr, to_scipy
    from daskxml.metrics.decisions import calibration_error, find_hits
    from daskxml.models.together import Together
    from trees import read

    given = read(folder, name)
    (train,), (test,) = given.train, given.test
    X, Y, T, truth = map(to_scipy, (train.features, train.labels, test.features, test.labels))
    order = np.random.default_rng(0).permutation(X.shape[0])
    first, last = np.split(order, [int(0.85 * order.size)])
    config = {"train": daskxml.Matrices(X[first], Y[first]), "overrides": ["cluster.threads=1"]}
    plain = train_here("tree", **config).model
    plain.threads = 1
    begun_s = time.process_time()
    model = plain.calibrate(X[last], Y[last])
    calibrate_s = time.process_time() - begun_s
    labels = truth.shape[1]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        ranked = {}
        for part, of in (("test", T), ("held", X[last])):
            ranked[part] = model.predict_top_k(of, min(labels, CANDIDATES))
            ids, p = ranked[part]
            sp.save_npz(Path(place) / f"{part}.npz", as_matrix(ids, p.clip(max=1 - 1e-6), labels))
        sp.save_npz(Path(place) / "truth.npz", (Y[last] > 0).astype(np.float32).tocsr())
        done = subprocess.run([peer, __file__, place, "--xcolumns"], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        for k in KS:
            top = reached(as_matrix(*model.predict_top_k(T, k), labels), truth)
            for measure in (*MEASURES, "alone"):
                kind, given = ("macro-F1", X[last]) if measure == "alone" else (measure, None)
                ids, _ = model.choose_together(T, k, measure=kind, beside=given)
                share = (model.label_counts + 1) / first.size
                begun_s = time.process_time()
                Together(kind, share * T.shape[0], k).choose(*ranked["test"])
                ours_s = time.process_time() - begun_s if given is None else None
                ours = reached(as_matrix(ids, np.ones(ids.shape), labels), truth)
                theirs = reached(sp.load_npz(Path(place) / f"{measure}-{k}.npz"), truth)
                raw, _ = plain.choose_together(T, k, measure=kind, beside=given)
                uncalibrated = reached(as_matrix(raw, np.ones(raw.shape), labels), truth)
                text = Path(place) / f"{measure}-{k}.txt"
                rows.append({
                    "data": name, "k": k, "measure": measure, "top k": top[kind],
                    "ours": ours[kind], "xCOLUMNs": theirs[kind],
                    "uncalibrated": uncalibrated[kind], "P@k": ours["P"],
                    "P@k of top k": top["P"], "ours, CPU s": ours_s,
                    "xCOLUMNs, CPU s": float(text.read_text()) if text.exists() else None,
                })  # fmt: skip
    some, their = T[:FEW], truth[:FEW]
    csr = label_csr(their, *their.shape)
    wide = replace(plain.header, spec=replace(plain.spec, beam=min(labels, 4096)))
    exact = daskxml.Model(wide, plain.parameters, plain.label_counts, threads=1)
    exact = exact.with_decisions(model.header.decisions)
    for k in (1, *KS):
        found = {}
        for which, each, count in (("beam", model, CANDIDATES), ("all", exact, labels)):
            ids, _ = each.choose_together(some, k, measure="PSP", candidates=count)
            found[which] = psp(ids, csr, model.inverse_propensity)
        found["top k"] = psp(model.predict_top_k(some, k)[0], csr, model.inverse_propensity)
        rows.append({"data": name, "k": k, "measure": "PSP", **found})
    csr = label_csr(truth, *truth.shape)
    for k in (20, 5):
        error = {}
        for which, each in (("before", plain), ("after", model)):
            ids, scores = each.predict_top_k(T, k)
            error[which] = calibration_error(scores[ids >= 0], find_hits(ids, csr)[ids >= 0])
        rows.append({"data": name, "k": k, "measure": "calibration error", **error,
                     "calibrate, CPU s": calibrate_s})  # fmt: skip
    return rows


def psp(ids: Any, truth: Any, inverse: Any) -> float:
    from daskxml.metrics import metric_sums

    k = ids.shape[1]
    return metric_sums(np.ascontiguousarray(ids), truth, inverse, (k,)).result()[f"PSP@{k}"]


def main() -> None:
    """Measure every set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--peer", help="the Python that has xcolumns")
    parser.add_argument("--xcolumns", action="store_true", help="used by the script itself")
    options = parser.parse_args()
    if options.xcolumns:
        return xcolumns(options.folder)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from machine import write_result

    rows: list[dict[str, Any]] = []
    for name in options.sets.split(","):
        rows += measure_set(options.folder, name, options.peer)
        write_result("together", rows, xcolumns="0.0.2")


if __name__ == "__main__":
    main()
