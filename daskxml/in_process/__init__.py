"""A run in this process: one worker, real time, no cluster."""

from daskxml.in_process.rows import Rows, read_rows
from daskxml.in_process.run import InProcessRun

__all__ = ["InProcessRun", "Rows", "read_rows"]
