"""Suites of runs and benchmark scripts, cell by cell in processes of their own, with one table.

``suite`` reads what to measure; ``cells`` finds the data and plans the cells; ``run_suite`` has
them executed by ``execution``, within budgets, and writes the table: ``figures`` reads what they
measured, ``regression`` compares it with an earlier bench, ``tables`` formats both.
"""

from daskxml.cli.bench.run_suite import TABLE_FILE, run_suite
from daskxml.cli.bench.suite import load_suite, packaged_suites

__all__ = ["TABLE_FILE", "load_suite", "packaged_suites", "run_suite"]
