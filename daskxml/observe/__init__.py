"""Showing runs: terminal, dashboard, notebook, loggers and reports."""
