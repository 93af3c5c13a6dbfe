"""Reports of runs from their directories alone: pages, tables, times to a level."""

from daskxml.observe.report.write import write_report

__all__ = ["write_report"]
