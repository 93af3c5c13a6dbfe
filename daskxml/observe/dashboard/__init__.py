"""Watching runs: a page in Dask's dashboard, and figures for Prometheus."""

from daskxml.observe.dashboard.plugin import DashboardPlugin

__all__ = ["DashboardPlugin"]
