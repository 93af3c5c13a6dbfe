"""``daskxml inspect``, ``generate``, ``evaluate`` and ``predict``: on data files and models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from daskxml.cli.arguments import Options
from daskxml.cli.predictions import STDOUT, write_predictions
from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import plan_blocks, read_header
from daskxml.data.inspection import inspect_file
from daskxml.data.parse import Dialect, parse_pieces
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.model.trained import Model, evaluate_partitions
from daskxml.observe.terminal import print_metrics

BLOCK_BYTES = 16 << 20


def inspect(options: Options) -> int:
    """Describe a data file and its problems, as lines or as one JSON object."""
    found = inspect_file(options.data)
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
    parts = read_partitions(model, options.data)
    blocks = (model.predict_top_k(part, k) for part in parts)
    rows, scores = write_predictions(options.out, model, blocks)
    if options.out != STDOUT:
        labels = model.spec.labels
        print(f"wrote {rows:,} rows x {labels:,} labels, {scores:,} scores, to {options.out}")
    return 0


def read_partitions(model: Model, paths: Sequence[str]) -> Iterator[Partition]:
    """Yield the rows of text files block by block, with as many columns as the model has.

    Ids count from the base of the model's training files; in files with a header, from 0.

    Raises
    ------
    InputError
        If a file cannot be read, is malformed, or has ids or a header that do not fit the model.
    """
    for block in plan_blocks(paths, BLOCK_BYTES):
        for parsed in parse_pieces(block, _dialect(model, block.path)):
            yield parsed.partition


def _dialect(model: Model, path: str) -> Dialect:
    """Return how the ids of a file are counted."""
    spec, header = model.spec, read_header(path)
    if header is None:
        return Dialect(
            features=spec.features,
            labels=spec.labels,
            feature_base=model.header.feature_base,
            label_base=model.header.label_base,
        )
    if (header.features, header.labels) != (spec.features, spec.labels):
        problem = (
            f"its header has {header.features} features and {header.labels} labels, the model has "
            f"{spec.features} and {spec.labels}; give rows of the data set it was trained on"
        )
        raise InputError(problem, path, 1)
    return Dialect(features=spec.features, labels=spec.labels)
