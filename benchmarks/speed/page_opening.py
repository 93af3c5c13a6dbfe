"""How soon the page of a run shows something: first paint, words of the run, a chart that is drawn.

    PYTHONPATH=tests python benchmarks/speed/page_opening.py [--rounds 5]

Four real workers train as in `watching.py`, with batches that are sleeps. Chromium is started anew
for each round and opens the page twice: the first time with an empty cache, the second with the
scripts of Bokeh in it. Seconds count from the call to show the page.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cloudpickle

import watching
from harness.browser import Browser, opened_browser

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
WORDS = "Bokeh.documents[0].get_model_by_name('headline').text.length > 0"
# A canvas of a chart with something on it.
CHART = """
(view => { const canvas = view.canvas_view.primary.canvas
  return canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)
})(Bokeh.index.find_one_by_id(Bokeh.documents[0].get_model_by_name('rows_per_s').id))
"""


def opened_s(browser: Browser, url: str) -> dict[str, float]:
    """Return the seconds until something is painted, until words and until a chart are there."""
    browser.open("about:blank")
    begun_s, found = time.perf_counter(), {}
    browser.open(url)
    for what, code in (("words", WORDS), ("chart", CHART)):
        while not browser.evaluate(f"(() => {{ try {{ return {code.strip()} }} catch {{}} }})()"):
            time.sleep(0.02)  # the page needs the processor, too
            assert time.perf_counter() - begun_s < 60, browser.problems
        found[what] = time.perf_counter() - begun_s
    return {"paint": browser.evaluate(PAINT) / 1e3, **found}


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cloudpickle.register_pickle_by_value(watching)  # which the scheduler cannot import
    found: dict[str, list[dict[str, float]]] = {"empty cache": [], "again": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with watching.cluster(folder) as (client, _), watching.running(client, folder) as url:
            for _ in range(options.rounds):
                with opened_browser() as browser:
                    for each in found.values():
                        each.append(opened_s(browser, url))
    rows: list[dict[str, Any]] = [
        {
            "opened": name,
            **{f"{what} s": statistics.median(it[what] for it in times) for what in times[0]},
            "slowest s": max(it["chart"] for it in times),
        }
        for name, times in found.items()
    ]
    write_result("page_opening", rows, rounds=options.rounds, measured=found)


if __name__ == "__main__":
    main()
