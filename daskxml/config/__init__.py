"""Run files: TOML in, one checked `RunConfig` out."""

from daskxml.config.run import RunConfig, as_toml, load_run_config
from daskxml.config.sections import DataSection
from daskxml.config.toml import packaged_run_files
from daskxml.core.fields import parse_size

__all__ = [
    "DataSection",
    "RunConfig",
    "as_toml",
    "load_run_config",
    "packaged_run_files",
    "parse_size",
]
