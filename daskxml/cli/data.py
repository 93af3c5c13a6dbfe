"""Commands on files and models: ``daskxml inspect``, ``predict``, ``evaluate`` and others."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import daskxml
from daskxml.api.model_rows import read_rows
from daskxml.api.prediction_files import STDOUT, write_predictions
from daskxml.cli.arguments import Options
from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError, DaskxmlError, InputError
from daskxml.data.inspection import inspect_file
from daskxml.data.rows import concatenate, to_scipy
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.kernels.compilation import TEXT, telling_of_compilation
from daskxml.models.compression import choose_drop
from daskxml.models.kinds import MixtureSpec
from daskxml.models.network.indexing import check_indexable, recall_of
from daskxml.models.network.label_index import index_of
from daskxml.models.store import model_bytes
from daskxml.models.trained import (
    Ids,
    Model,
    Scores,
    empty_rows,
    evaluate_partitions,
    unknown_texts,
)
from daskxml.observe.terminal import print_lines, print_metrics

TOP_K = 5  # labels that are predicted of each row, unless told otherwise

# A decorator of commands; on the standard error, as the output may be read by a program.
_telling = telling_of_compilation(lambda: print(TEXT, file=sys.stderr, flush=True))

_TOLD_ROWS, _TIMED_ROWS = 1000, 200  # by which recall and times are told


def inspect(options: Options) -> int:
    """Describe a data file and its problems, as lines or as one JSON object."""
    found = inspect_file(
        options.data,
        feature_names=options.feature_names or (),
        label_names=options.label_names or (),
    )
    print(json.dumps(asdict(found)) if options.json else "\n".join(found.lines()))
    return 0


def generate(options: Options) -> int:
    """Write generated training rows, and test rows where a file is named for them."""
    spec = SyntheticSpec(
        rows=options.rows,
        test_rows=max(1, options.rows // 6),
        features=options.features,
        labels=options.labels,
        seed=options.seed,
    )
    print(f"wrote {spec.rows:,} rows to {write_xml(options.out, spec)}")
    if options.test:
        print(f"wrote {spec.test_rows:,} rows to {write_xml(options.test, spec, 'test')}")
    return 0


@_telling
def evaluate(options: Options) -> int:
    """Print a model's metrics as a table, or as the object that a run's history holds."""
    model = _asked_model(options)
    metrics = evaluate_partitions(model, read_rows(model, options.data), options.k).result()
    if options.json:
        print(json.dumps(metrics))
    else:
        print_metrics(metrics)
    return 0


@_telling
def predict(options: Options) -> int:
    """Write the best labels of every row, or those above their thresholds."""
    if options.scheduler:
        return _predict_on_cluster(options)
    model = _asked_model(options)
    k = min(options.top_k or TOP_K, model.spec.labels)
    unknown = 0

    def blocks() -> Iterator[tuple[Ids, Scores]]:
        nonlocal unknown
        for part in read_rows(model, options.data, needs_labels=False):
            unknown += empty_rows(part.features) if model.header.vectorizer else 0
            if options.choose:
                yield model.choose(part, options.top_k)
            else:
                yield model.predict_top_k(part, k)

    rows, scores = write_predictions(options.out, model, blocks())
    _tell_unknown(unknown, rows)
    if options.out != STDOUT:
        labels = model.spec.labels
        print(f"wrote {rows:,} rows x {labels:,} labels, {scores:,} scores, to {options.out}")
    return 0


def _asked_model(options: Options) -> Model:
    model = Model.load(options.model)
    return model.exact if options.exact else model


def _predict_on_cluster(options: Options) -> int:
    if options.choose:
        raise ConfigError("--choose is for one process: leave out --scheduler")
    given = {"k": options.top_k or TOP_K, "out": options.out, "scheduler": options.scheduler}
    done = daskxml.predict(_asked_model(options), options.data, **given)
    before = f", {done.kept} of them from before" if done.kept else ""
    print(
        f"wrote {done.rows:,} rows, {done.scores:,} scores, to {done.out}: "
        f"{done.pieces} pieces{before}"
    )
    _tell_unknown(done.unknown, done.rows)
    return 0


def _tell_unknown(unknown: int, texts: int) -> None:
    if unknown:
        print(unknown_texts(unknown, texts), file=sys.stderr)


def export(options: Options) -> int:
    """Write a network as an ONNX graph."""
    from daskxml.models.network.onnx_export import export_onnx

    path = export_onnx(Model.load(options.model), options.out)
    print(f"wrote {path.stat().st_size:,} bytes to {path}")
    return 0


@_telling
def mix(options: Options) -> int:
    """Write one model of several, and print what each one's labels are worth beside it."""
    from daskxml.api.mixtures import held_out_rows, mix

    models = [Model.load(directory) for directory in options.models]
    if options.weights:
        mix(models, weights=options.weights).save(options.out)
        print(f"wrote a mixture of {len(models)} models to {options.out}")
        return 0
    if options.rows:
        rows, whose = concatenate(list(read_rows(models[0], options.rows))), "of --rows"
    else:
        rows, whose = held_out_rows(options.models), "that no part was trained on"
    mixture = mix(models, rows)
    mixture.save(options.out)
    spec = mixture.spec
    assert isinstance(spec, MixtureSpec)
    print(f"on {rows.rows:,} rows {whose}:")
    for name, share, model in zip(
        (*options.models, options.out), (*spec.weights, 1.0), (*models, mixture), strict=True
    ):
        found = model.evaluate(rows)
        scores = "  ".join(f"P@{k} {found[f'P@{k}']:.4f}" for k in (1, 3, 5))
        print(f"{scores}  weight {share:.2f}  {name}")
    return 0


@_telling
def calibrate(options: Options) -> int:
    """Write a calibrated model; print calibration error and F1 before and after."""
    from daskxml.api.mixtures import held_out_rows

    model = Model.load(options.model)
    if options.rows:
        rows, whose = concatenate(list(read_rows(model, options.rows))), "of --rows"
    else:
        rows, whose = held_out_rows([options.model]), "that the run has held out"
    calibrated = daskxml.calibrate(model, rows, k=options.k, f1=options.f1)
    calibrated.save(options.out or options.model, overwrite=options.out is None)
    made = calibrated.header.decisions
    assert made is not None
    if options.json:
        print(json.dumps(dict(made.measured)))
        return 0
    if model.header.decisions:
        print("an earlier calibration is replaced")
    print(
        f"on {rows.rows:,} rows {whose}, a fifth at a time by what the others give, "
        f"the best {made.k} labels of each:"
    )
    names = {"calibration_error": "calibration error", "macro-F1": "macro F1"}
    told = {
        text: f"{made.measured[f'{name}_before']:.4f} before, {made.measured[name]:.4f} after"
        for name, text in {**names, "micro-F1": "micro F1"}.items()
    }
    own = f"{len(made.labels):,} of {model.spec.labels:,} labels have their own"
    print_lines(told | {"thresholds": f"{made.threshold:.4f}; {own}"})
    print(f"wrote {options.out or options.model}")
    return 0


@_telling
def index(options: Options) -> int:
    """Write a model with an index, and print how well and how fast it finds labels."""
    model = Model.load(options.model, threads=1)
    check_indexable(model)
    rows = to_scipy(_rows_to_index(model, options).features)
    halves = rows[::2], rows[1::2]
    if not halves[1].shape[0]:
        raise InputError(f"{rows.shape[0]} rows to choose by: give two or more")
    begun_s = time.perf_counter()
    indexed = daskxml.index(model, halves[0], recall=options.recall, k=options.k)
    took_s = time.perf_counter() - begun_s
    out = options.out or options.model
    indexed.save(out, overwrite=options.out is None)
    found = index_of(indexed.parameters)
    assert found is not None
    told = halves[1][:_TOLD_ROWS]
    ids, wanted = (each.predict_top_k(told, options.k)[0] for each in (indexed, indexed.exact))
    print(
        f"recall {recall_of(ids, wanted):.4f} of the best {options.k} on {told.shape[0]:,} rows "
        f"(asked: {options.recall:g} on {halves[0].shape[0]:,} others)"
    )
    print(
        f"looks into {found.probed_groups:,} of {len(found.groups):,} groups and "
        f"{found.probed_clusters:,} of {len(found.clusters):,} clusters of labels"
    )
    quick, slow = (_row_ms(each, told, options.k) for each in (indexed, indexed.exact))
    print(f"{quick:.2f} ms a row, {slow:.2f} ms by every label, on one thread")
    print(f"{model_bytes(out) / 1e6:,.1f} MB  {out}, made in {took_s:.1f} s")
    return 0


def _rows_to_index(model: Model, options: Options) -> Partition:
    """Return the rows of the files, or those that the run has held out."""
    from daskxml.api.mixtures import held_out_rows

    if options.rows:
        return concatenate(list(read_rows(model, options.rows, needs_labels=False)))
    try:
        return held_out_rows([options.model])
    except DaskxmlError as error:
        need = "give --rows FILE, rows like those that will be asked for (labels are not needed)"
        raise InputError(f"{options.model} has no rows that were held out: {need}") from error


def _row_ms(model: Model, rows: Any, k: int) -> float:
    """Return the median time of one row alone."""
    model.warm_up()
    times_s = []
    for row in [rows[i] for i in range(min(_TIMED_ROWS, rows.shape[0]))]:
        begun_s = time.perf_counter()
        model.predict_top_k(row, k)
        times_s.append(time.perf_counter() - begun_s)
    return 1e3 * statistics.median(times_s)


@_telling
def compress(options: Options) -> int:
    """Write a smaller model, and print the size of both and what their labels are worth."""
    model = Model.load(options.model)
    rows = concatenate(list(read_rows(model, options.rows))) if options.rows else None
    given = {} if options.drop is None else {"drop": options.drop}
    if options.lose is not None:
        if rows is None:
            raise ConfigError("--lose is told by rows: give --rows FILE")
        given = {"drop": choose_drop(model, rows, lost=options.lose)}
        print(f"--drop {given['drop']:g}, chosen on {rows.rows:,} rows")
    small = daskxml.compress(model, bits=options.bits, **given)
    small.save(options.out)
    for name, each in ((options.model, model), (options.out, small)):
        line = f"{model_bytes(name) / 1e6:10,.1f} MB  {name}"
        if rows is not None:
            found = each.evaluate(rows)
            line = "  ".join(f"P@{k} {found[f'P@{k}']:.4f}" for k in (1, 3, 5)) + line
        print(line.lstrip())
    return 0
