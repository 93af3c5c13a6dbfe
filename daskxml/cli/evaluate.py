"""``daskxml evaluate``: score a trained model on labelled rows, block by block."""

from __future__ import annotations

import json

from daskxml.cli.arguments import Options
from daskxml.cli.rows import read_partitions
from daskxml.cli.tables import print_metrics
from daskxml.model.trained import Model, evaluate_partitions


def run(options: Options) -> int:
    """Print the metrics as a table, or as the object that a run's history holds."""
    model = Model.load(options.model)
    metrics = evaluate_partitions(model, read_partitions(model, options.data), options.k).result()
    if options.json:
        print(json.dumps(metrics))
    else:
        print_metrics(metrics)
    return 0
