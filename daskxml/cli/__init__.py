"""The command ``daskxml``."""

from daskxml.cli.main import main

__all__ = ["main"]
