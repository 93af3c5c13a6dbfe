"""Commands on files and models: ``daskxml predict``, ``evaluate`` and others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import daskxml
from daskxml.api.prediction_files import STDOUT, Block, unknown_rows, write_predictions
from daskxml.cli.arguments import Options
from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError
from daskxml.core.text import printable
from daskxml.data.rows import concatenate
from daskxml.data.side_files import read_names
from daskxml.kernels.registry import TEXT, telling_of_compilation
from daskxml.models.rankings import unknown_texts
from daskxml.models.rows import evaluate_partitions, read_rows
from daskxml.models.store import model_bytes
from daskxml.models.trained import Model
from daskxml.observe.terminal import print_lines, print_metrics
from daskxml.records.run_dir import RUN_FILE

TOP_K = 5  # labels that are predicted of each row, by default
_F1 = {"macro-F1": "macro F1", "micro-F1": "micro F1"}
_CALIBRATED = {"calibration_error": "calibration error", **_F1}

# A decorator of commands; on the standard error, as the output may be read by a program.
_telling = telling_of_compilation(lambda: print(TEXT, file=sys.stderr, flush=True))


@_telling
def evaluate(options: Options) -> int:
    """Print a model's metrics as a table, or as the object that a run's history holds."""
    model = Model.load(options.model)
    rows = read_rows(model, options.data, may_be_new=True)
    metrics = evaluate_partitions(model, rows, options.k).result()
    if options.json:
        print(json.dumps(metrics))
    else:
        print_metrics(metrics)
    return 0


@_telling
def predict(options: Options) -> int:
    """Write the best labels of every row, those above their thresholds, or those best together."""
    model = Model.load(options.model)
    k = min(options.top_k or TOP_K, model.spec.labels)
    if options.scheduler:
        if options.choose or options.measure:
            raise ConfigError("--choose and --measure are for one process: leave out --scheduler")
        where = {"out": options.out, "scheduler": options.scheduler}
        done = daskxml.predict(model, options.data, k=k, **where)
    else:
        done = write_predictions(options.out, model, _ranked(model, k, options))
    if done.unknown:
        print(unknown_texts(done.unknown, done.rows), file=sys.stderr)
    if options.out != STDOUT:
        size = f"{done.rows:,} rows x {model.spec.labels:,} labels, {done.scores:,} scores"
        print(f"wrote {size}, to {printable(options.out)}")
    return 0


def _ranked(model: Model, k: int, options: Options) -> Iterable[Block]:
    parts = read_rows(model, options.data, needs_labels=False)
    if options.measure:
        if options.choose:
            raise ConfigError("--choose and --measure are two ways to choose labels: give one")
        rows = concatenate([*parts])
        found = model.choose_together(rows, k, measure=options.measure)
        return [Block(*found, unknown_rows(model, rows))]
    if not options.choose:
        return (Block.of(part, model, k) for part in parts)
    return (Block(*model.choose(part, options.top_k), unknown_rows(model, part)) for part in parts)


@_telling
def mix(options: Options) -> int:
    """Write one model of several, and print what each one's labels are worth beside it."""
    from daskxml.cli.train import free_directory

    if options.weights and options.valid:
        raise ConfigError("--valid and --weights are two ways to weigh the models: give one")
    out = options.out or free_directory("mix")
    models = [Model.load(directory) for directory in options.models]
    if options.weights:
        daskxml.mix(models, weights=options.weights, out=out)
        print(f"wrote a mixture of {len(models)} models to {printable(str(out))}")
        return 0
    rows = _rows_of(models[0], options.valid)
    whose = "of --valid" if rows else "that no part was trained on"
    rows = rows or held_out_rows(options.models, "--valid FILE, or --weights")
    mixture = daskxml.mix(models, valid=rows, out=out)
    print(f"on {rows.rows:,} rows {whose}:")
    all_of = (*options.models, out), (*mixture.spec.weights, 1.0), (*models, mixture)
    for name, share, model in zip(*all_of, strict=True):
        print(f"{_scores(model, rows)}  weight {share:.2f}  {name}")
    return 0


@_telling
def calibrate(options: Options) -> int:
    """Write a calibrated model; print calibration error and F1 before and after."""
    model = Model.load(options.model)
    rows = _rows_of(model, options.rows)
    whose = "of the files" if rows else "that the run has held out"
    rows = rows or held_out_rows([options.model], "FILE")
    calibrated = model.calibrate(rows, k=options.k, f1=options.f1)
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
    values = {
        text: f"{made.measured[f'{name}_before']:.4f} before, {made.measured[name]:.4f} after"
        for name, text in _CALIBRATED.items()
    }
    own = f"{len(made.labels):,} of {model.spec.labels:,} labels have their own"
    print_lines(values | {"thresholds": f"{made.threshold:.4f}; {own}"})
    print(f"wrote {printable(options.out or options.model)}")
    return 0


@_telling
def compress(options: Options) -> int:
    """Write a smaller model, and print the size of both and what their labels are worth."""
    model = Model.load(options.model)
    rows = _rows_of(model, options.rows)
    given = {} if options.drop is None else {"drop": options.drop}
    small = model.compress(bits=options.bits, **given)
    small.save(options.out)
    for name, each in ((options.model, model), (options.out, small)):
        line = f"{model_bytes(name) / 1e6:10,.1f} MB  {name}"
        print((_scores(each, rows) + line).lstrip())
    return 0


@_telling
def extend(options: Options) -> int:
    """Write a model with new labels, and print how many there are."""
    model = Model.load(options.model)
    names = read_names(options.label_names) if options.label_names else ()
    rows = concatenate(list(read_rows(model, options.data, new_names=names)))
    extended = model.extend(rows, names=names)
    extended.save(options.out)
    new = extended.spec.labels - model.spec.labels
    print(f"wrote {printable(options.out)} with {new:,} new labels, fitted to {rows.rows:,} rows")
    return 0


def _rows_of(model: Model, files: Sequence[str] | None) -> Partition | None:
    """Return the rows of files that an option has named, as a model takes them."""
    return concatenate(list(read_rows(model, files))) if files else None


def _scores(model: Model, rows: Partition | None) -> str:
    """Return what a model's labels of rows are worth."""
    found = {} if rows is None else model.evaluate(rows)
    return "  ".join(f"P@{k} {found[f'P@{k}']:.4f}" for k in (1, 3, 5) if found)


def held_out_rows(directories: Sequence[str | Path], instead: str) -> Partition:
    """Return the rows that all of these runs have held out, read from their files again.

    ``instead`` of them an error asks for.

    Raises
    ------
    ConfigError
        If one has held out none, or others.
    """
    from daskxml.local.rows import load_rows  # which other commands do not need

    configs = [load_run_config(Path(directory) / RUN_FILE) for directory in directories]
    for directory, config in zip(directories, configs, strict=True):
        if not config.data.validation:
            raise ConfigError(
                f"{directory} has held out no rows: train with --set data.validation=0.1, or "
                f"give {instead}"
            )
        if not config.data.train:
            problem = f"{directory} was trained on rows that are in no files: give {instead}"
            raise ConfigError(problem)
        if _split(config) != _split(configs[0]):
            raise ConfigError(
                f"{directory} has held out other rows than {directories[0]}: give both the same "
                f"files, data.validation and run.seed, or give {instead}"
            )
    plain: dict[str, Any] = {"training": {"epochs": 1}, "run": {"seed": configs[0].run.seed}}
    sections = configs[0].as_dict()
    plain |= {name: sections[name] for name in ("data", "text") if name in sections}
    _, rows, _ = load_rows(load_run_config(plain), 1)
    return concatenate(rows.test.parts)


def _split(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides which rows are held out."""
    data, seed = config.data, config.run.seed
    return data.train, data.validation, seed, data.features, data.labels, config.text
