"""The rows that runs have held out of training (`data.validation`), read again from their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError
from daskxml.data.rows import concatenate
from daskxml.local import read_rows
from daskxml.records.run_dir import RUN_FILE


def held_out_rows(directories: Sequence[str | Path], instead: str) -> Partition:
    """Return the rows that all of these runs have held out; ``instead`` of them an error asks for.

    Raises
    ------
    ConfigError
        If one has held out none, or others.
    """
    configs = [load_run_config(Path(directory) / RUN_FILE) for directory in directories]
    for directory, config in zip(directories, configs, strict=True):
        if not config.data.validation:
            raise ConfigError(
                f"{directory} has held out no rows: train with --set data.validation=0.1, or "
                f"give {instead}"
            )
        if config.pipeline.stages or not config.data.train:
            raise ConfigError(
                f"{directory} was trained on rows that are in no files: give {instead}"
            )
        if _split(config) != _split(configs[0]):
            raise ConfigError(
                f"{directory} has held out other rows than {directories[0]}: give both the same "
                f"files, data.validation and run.seed, or give {instead}"
            )
    plain = {"training": {"epochs": 1}, "run": {"seed": configs[0].run.seed}}
    given = {f"data.{name}": value for name, value in configs[0].as_dict()["data"].items()}
    return concatenate(read_rows(load_run_config(plain, given), 1).test)


def _split(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides which rows are held out."""
    data = config.data
    return data.train, data.validation, config.run.seed, data.features, data.labels
