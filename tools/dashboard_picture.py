"""A picture of the dashboard's page: docs/images/dashboard.png.

    PYTHONPATH=tests python tools/dashboard_picture.py FILE TESTS [--dark] [--seconds 40]

The files are rows for training and for testing. Needs Chromium.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from distributed import Client, LocalCluster
from PIL import Image

import daskxml
from harness.browser import opened_browser

PLACE = Path(__file__).parents[1] / "docs" / "images" / "dashboard.png"
WIDTH, HEIGHT = 1280, 930
RUN = {"strategy.lr": 0.5, "training.epochs": 200, "model.hidden": [128], "run.name": "first"}


def main() -> None:
    """Train for a while, and draw the page as a browser shows it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    with LocalCluster(n_workers=3, threads_per_worker=1) as cluster, Client(cluster) as client:
        given = {"train": options.train, "test": options.test, "overrides": RUN}
        name = daskxml.launch("adaptive-sgd", client=client, **given)
        time.sleep(options.seconds)
        url = cluster.dashboard_link.removesuffix("status") + "daskxml"
        with opened_browser() as page:
            page.open(url, width=WIDTH, height=HEIGHT, dark=options.dark)
            time.sleep(options.seconds)  # plots are drawn
            PLACE.parent.mkdir(exist_ok=True)
            page.screenshot(PLACE)
        with Image.open(PLACE) as picture:
            picture.crop((0, 0, WIDTH, HEIGHT)).convert("P", palette=1, colors=128).save(PLACE)
        daskxml.attach(name, client=client).stop()


if __name__ == "__main__":
    main()
