"""Watching runs: a page in Dask's dashboard."""

from daskxml.observe.dashboard.plugin import DashboardPlugin

__all__ = ["DashboardPlugin"]
