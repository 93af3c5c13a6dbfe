"""``daskxml inspect``, ``generate``, ``evaluate``, ``predict``, ``mix``, ``compress``: on files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import daskxml
from daskxml.cli.arguments import Options
from daskxml.cli.predictions import STDOUT, write_predictions
from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.formats import declared, plan_files, read_pieces
from daskxml.data.inspection import inspect_file
from daskxml.data.parse import Dialect
from daskxml.data.rows import concatenate
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.model.kinds import MixtureSpec
from daskxml.model.store import model_bytes
from daskxml.model.trained import Model, evaluate_partitions
from daskxml.observe.terminal import print_metrics

BLOCK_BYTES = 16 << 20


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
    metrics = evaluate_partitions(model, read_partitions(model, options.data), options.k).result()
    if options.json:
        print(json.dumps(metrics))
    else:
        print_metrics(metrics)
    return 0


def predict(options: Options) -> int:
    """Write the best labels of every row, `top_k` a row; see `daskxml.cli.predictions`."""
    model = Model.load(options.model)
    k = min(options.top_k, model.spec.labels)
    parts = read_partitions(model, options.data, needs_labels=False)
    blocks = (model.predict_top_k(part, k) for part in parts)
    rows, scores = write_predictions(options.out, model, blocks)
    if options.out != STDOUT:
        labels = model.spec.labels
        print(f"wrote {rows:,} rows x {labels:,} labels, {scores:,} scores, to {options.out}")
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
        rows, whose = concatenate(list(read_partitions(models[0], options.rows))), "of --rows"
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
    rows = concatenate(list(read_partitions(model, options.rows))) if options.rows else None
    small.save(options.out)
    for name, each in ((options.model, model), (options.out, small)):
        line = f"{model_bytes(name) / 1e6:10,.1f} MB  {name}"
        if rows is not None:
            found = each.evaluate(rows)
            line = "  ".join(f"P@{k} {found[f'P@{k}']:.4f}" for k in (1, 3, 5)) + line
        print(line.lstrip())
    return 0


def read_partitions(
    model: Model, paths: Sequence[str], *, needs_labels: bool = True
) -> Iterator[Partition]:
    """Yield the rows of files block by block, with as many columns as the model has.

    Ids count from the base of the model's training files; in files with a header, from 0. Names in
    tables are those of the model.

    Raises
    ------
    InputError
        If a file cannot be read, is malformed, or has ids or a header that do not fit the model.
    """
    for block in plan_files(paths, BLOCK_BYTES):
        dialect = replace(_dialect(model, block.path), needs_labels=needs_labels)
        for parsed in read_pieces(block, dialect):
            yield parsed.partition


def _dialect(model: Model, path: str) -> Dialect:
    """Return how the ids of a file are counted."""
    spec, stored, header = model.spec, model.header, declared(path)
    known = Dialect(
        features=spec.features,
        labels=spec.labels,
        label_base=stored.label_base,
        feature_names=stored.feature_names,
        label_names=stored.label_names,
    )
    if header is None:
        return replace(known, feature_base=stored.feature_base)
    found = (header.features or spec.features, header.labels or spec.labels)
    if found != (spec.features, spec.labels):
        problem = (
            f"its header has {found[0]} features and {found[1]} labels, the model has "
            f"{spec.features} and {spec.labels}; give rows of the data set it was trained on"
        )
        raise InputError(problem, path, 1)
    return replace(known, label_base=0) if header.labels else known
