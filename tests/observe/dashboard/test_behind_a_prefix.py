"""The page of a local cluster behind a proxy, and what is left when the cluster is closed."""

import re
import threading
from pathlib import Path
from typing import Any

import daskxml
from harness.watched_run import read


def loops() -> int:
    """Return how many of Dask's event loops run in this process."""
    return sum(thread.name == "IO loop" for thread in threading.enumerate())


def test_a_local_cluster_behind_a_prefix(data: dict[str, Path], values: dict[str, Any]) -> None:
    values |= {"training": {"megabatches": 6}, "run": {"name": "behind"}}
    values["cluster"] |= {"workers": 1, "dashboard_prefix": "/user/me/"}
    pages: list[str] = []

    def read_pages(event: Any) -> None:
        if event["kind"] == "started":
            link = event["dashboard"]
            assert link.endswith("/user/me/daskxml")
            pages.extend([read(link), read(link.replace("daskxml", "status"))])
            script = re.search(r'src="(/user/me/static/js/bokeh[^"]*)"', pages[0])
            assert script is not None
            pages.append(read(link.replace("/user/me/daskxml", script[1])))

    before = loops()
    daskxml.train(values, train=data["train"], on_event=read_pages, dashboard=True)
    assert loops() == before  # the cluster's own ended with it, and so did what was shown there
    page, status, script = pages
    assert 'href="daskxml"' in page
    assert 'href="daskxml"' in status
    assert "Bokeh" in script
    assert not re.findall(r'(?:src|href)="(?:https?:)?//(?!dask.org|docs.dask.org)', page)
