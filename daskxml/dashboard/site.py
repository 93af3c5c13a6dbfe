"""Where the page is: in the HTTP server of Dask's dashboard, with a link in its navigation bar.

Dask has no interface for further pages. What is used of it: the scheduler's `http_application`
takes applications at any time, `distributed.dashboard.core.BokehApplication` makes one as Dask
makes its own, and the list of pages that its templates show can be added to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import Scheduler

from daskxml.dashboard.record import Record

PAGE = "daskxml"
NEEDED = "bokeh>=3.1"


def explain_missing() -> str:
    """Say how to get the page where it cannot be shown; "" where nothing is missing."""
    try:
        import bokeh  # noqa: F401 - whether it is there is the question
    except ImportError:
        return (
            f"the scheduler has no Bokeh, so there is no page to watch the run on: install "
            f"'{NEEDED}' in its environment and start it again"
        )
    return ""


class Site:
    """The page of a scheduler that has a dashboard.

    Parameters
    ----------
    scheduler
        Its dashboard is on.
    records
        Every run that there is, by name; read whenever the page is.
    """

    def __init__(self, scheduler: Scheduler, records: Mapping[str, Record]) -> None:
        from distributed.dashboard.core import BokehApplication
        from distributed.dashboard.scheduler import template_variables
        from tornado.ioloop import IOLoop

        from daskxml.dashboard.page import document

        self._server = scheduler.http_application
        self._variables = template_variables(scheduler)

        def show(scheduler: Scheduler, variables: Mapping[str, Any], doc: Any) -> None:
            document(records, variables, doc)

        prefix = bokeh_prefix(scheduler)
        self._page = BokehApplication({f"/{PAGE}": show}, scheduler, prefix, self._variables)
        self._page.initialize(IOLoop.current())
        self._page.start()
        self._server.add_application(self._page)
        self._variables["pages"].append(PAGE)
        self.path = f"{prefix}/{PAGE}"

    def close(self) -> None:
        """Take the page and its link away."""
        self._variables["pages"].remove(PAGE)
        self._server.applications.remove(self._page)
        self._page.stop()


def has_dashboard(scheduler: Scheduler) -> bool:
    """Whether the scheduler shows Dask's own pages."""
    return any(map(_is_bokeh, scheduler.http_application.applications))


def bokeh_prefix(scheduler: Scheduler) -> str:
    """Return what the paths of Dask's pages begin with: "" or like "/user/me"."""
    page = next(filter(_is_bokeh, scheduler.http_application.applications))
    prefix: str = page.prefix
    return prefix


def _is_bokeh(application: Any) -> bool:
    return hasattr(application, "app_paths")
