"""Showing runs: terminal, dashboard, notebook, callbacks and reports."""
