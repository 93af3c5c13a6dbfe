"""Suites of runs and benchmark scripts, cell by cell in processes of their own, with one table.

``suite`` reads what to measure, ``sets`` finds the data, ``plan`` makes cells of it, ``session``
goes through them: ``execution`` starts a cell and holds it to its budgets, ``directory`` keeps what
came out, ``figures`` reads it. ``summary``, ``noise`` and ``tables`` make the table, and the
comparison with an earlier one.
"""

from daskxml.bench.session import Outcome, run_bench
from daskxml.bench.suite import Suite, load_suite, packaged_suites

__all__ = ["Outcome", "Suite", "load_suite", "packaged_suites", "run_bench"]
