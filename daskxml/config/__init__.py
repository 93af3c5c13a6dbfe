"""Run files: TOML in, one checked `RunConfig` out."""

from daskxml.config.run import RunConfig, load_run_config
from daskxml.config.toml import DEFAULT_RUN_FILE, packaged_run_files

__all__ = ["DEFAULT_RUN_FILE", "RunConfig", "load_run_config", "packaged_run_files"]
