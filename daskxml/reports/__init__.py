"""Reports of runs from their directories alone: pages, pictures, tables, times to a target."""

from daskxml.reports.runs import RunRecord, read_run, read_runs
from daskxml.reports.targets import Reached, reach
from daskxml.reports.writing import Written, write_report

__all__ = ["Reached", "RunRecord", "Written", "reach", "read_run", "read_runs", "write_report"]
