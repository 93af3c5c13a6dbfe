"""Commands on files and models: ``daskxml inspect``, ``predict``, ``evaluate`` and others."""

from __future__ import annotations

import json
from dataclasses import asdict

import daskxml
from daskxml.api.model_rows import read_rows
from daskxml.api.prediction_files import STDOUT, write_predictions
from daskxml.cli.arguments import Options
from daskxml.data.inspection import inspect_file
from daskxml.data.rows import concatenate
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.model.kinds import MixtureSpec
from daskxml.model.store import model_bytes
from daskxml.model.trained import Model, evaluate_partitions
from daskxml.observe.terminal import print_metrics


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


def evaluate(options: Options) -> int:
    """Print a model's metrics as a table, or as the object that a run's history holds."""
    model = Model.load(options.model)
    metrics = evaluate_partitions(model, read_rows(model, options.data), options.k).result()
    if options.json:
        print(json.dumps(metrics))
    else:
        print_metrics(metrics)
    return 0


def predict(options: Options) -> int:
    """Write the best labels of every row, `top_k` a row; see `daskxml.cli.predictions`."""
    if options.scheduler:
        return _predict_on_cluster(options)
    model = Model.load(options.model)
    k = min(options.top_k, model.spec.labels)
    parts = read_rows(model, options.data, needs_labels=False)
    blocks = (model.predict_top_k(part, k) for part in parts)
    rows, scores = write_predictions(options.out, model, blocks)
    if options.out != STDOUT:
        labels = model.spec.labels
        print(f"wrote {rows:,} rows x {labels:,} labels, {scores:,} scores, to {options.out}")
    return 0


def _predict_on_cluster(options: Options) -> int:
    done = daskxml.predict(
        options.model, options.data, k=options.top_k, out=options.out, scheduler=options.scheduler
    )
    before = f", {done.kept} of them from before" if done.kept else ""
    print(
        f"wrote {done.rows:,} rows, {done.scores:,} scores, to {done.out}: "
        f"{done.pieces} pieces{before}"
    )
    return 0


def export(options: Options) -> int:
    """Write a network as an ONNX graph."""
    from daskxml.model.onnx_export import export_onnx

    path = export_onnx(Model.load(options.model), options.out)
    print(f"wrote {path.stat().st_size:,} bytes to {path}")
    return 0


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


def compress(options: Options) -> int:
    """Write a smaller model, and print the size of both and what their labels are worth."""
    model = Model.load(options.model)
    given = {} if options.drop is None else {"drop": options.drop}
    small = daskxml.compress(model, bits=options.bits, **given)
    rows = concatenate(list(read_rows(model, options.rows))) if options.rows else None
    small.save(options.out)
    for name, each in ((options.model, model), (options.out, small)):
        line = f"{model_bytes(name) / 1e6:10,.1f} MB  {name}"
        if rows is not None:
            found = each.evaluate(rows)
            line = "  ".join(f"P@{k} {found[f'P@{k}']:.4f}" for k in (1, 3, 5)) + line
        print(line.lstrip())
    return 0
