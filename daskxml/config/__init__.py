"""Run files: TOML in, one checked `RunConfig` out."""

from daskxml.config.decode import suggestion
from daskxml.config.fields import parse_size
from daskxml.config.run import RunConfig, load_run_config
from daskxml.config.sections import (
    CheckpointSection,
    ClusterSection,
    DataSection,
    EvaluationSection,
    RunSection,
    TrainingSection,
)
from daskxml.config.source import packaged_run_files

__all__ = [
    "CheckpointSection",
    "ClusterSection",
    "DataSection",
    "EvaluationSection",
    "RunConfig",
    "RunSection",
    "TrainingSection",
    "load_run_config",
    "packaged_run_files",
    "parse_size",
    "suggestion",
]
