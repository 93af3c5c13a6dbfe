"""What a notebook shows of a run: well-formed, true, and without anything to load."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from daskxml.api.in_process import simulate
from daskxml.api.run import Run
from daskxml.observe.notebook import NotebookProgress, notebook_progress
from harness.run_events import row
from harness.small_data import data as data

VALUES = {
    "model": {"hidden": [8]},
    "strategy": {"batch_max": 32, "megabatch_batches": 10},
    "training": {"megabatches": 3},
    "evaluation": {"every": 1},
}


def show(run):
    """Return the elements of what is shown, and its texts."""
    html = run._repr_html_()
    assert not re.search(r"\b(src|href)=|<script|url\(", html)
    root = ElementTree.fromstring(html)
    return root, " ".join(root.itertext())


@pytest.mark.parametrize("parts", [("train", "test"), ("train",)])
def test_a_run_shows_its_metrics_or_its_loss(data, parts):
    run = simulate(VALUES, [1, 1], **{part: data[part] for part in parts})
    root, text = show(run)
    for piece in ("3 mega-batches", "2 workers", "ended by megabatches"):
        assert piece in text
    (svg,) = (element for element in root.iter() if element.get("class") == "plot")
    lines = [element for element in svg.iter() if element.get("stroke-width") == "1.8"]
    if "test" in parts:
        assert f"{run.metrics['PSP@3']:.4f}" in text
        assert len(lines) == 3  # P@1, P@3, P@5
    else:
        assert len(lines) == 1
        assert "loss" in text
        assert not list(root.iter("table"))


def test_a_run_without_mega_batches_is_shown():
    run = Run(None, [], Path("/runs/<b>&"), "interrupt")
    _, text = show(run)
    assert "0 mega-batches" in text
    assert "/runs/<b>&" in text


def test_a_run_under_way_shows_how_far_it_is():
    progress = NotebookProgress("<first>")
    progress.view.apply({"kind": "started", "workers": ["0"], "limits": {"epochs": 0.4}})
    progress.view.apply({"kind": "status", "state": "merging", "rows": 400, "epoch": 0.2})
    for number in (1, 2):
        event = {"kind": "megabatch", "row": row(number)}
        progress.view.apply(event)
        progress._course.apply(event, progress.view)
    html = progress._repr_html_()
    text = " ".join(" ".join(ElementTree.fromstring(html).itertext()).split())
    for piece in ("<first> : merging, 400 rows, epoch 0.20 of 0.4, about 4 s left", "0.0200"):
        assert piece in text
    assert "width:50.0%" in html
    progress.view.apply({"kind": "ended", "reason": "epochs"})
    assert "ended: epochs" in progress._repr_html_()
    assert "width:" not in progress._repr_html_().split("max-width", 1)[1].split("<svg")[0]


def test_outside_of_notebooks_nothing_is_drawn():
    assert notebook_progress() is None


CELL = """
import numpy as np, daskxml
settings = {"strategy.megabatch_batches": 2}
short = {"hidden": (8,), "batch_size": 16, "epochs": 3}
model = daskxml.XMLClassifier("network", **short, settings=settings, verbose=True)
_ = model.fit(np.eye(64), np.eye(64, dtype=int))
"""


@pytest.mark.slow
def test_a_cell_draws_a_run_again_and_again_in_one_place():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=60)
    shown = []

    def hear(message):
        if message["msg_type"] in ("display_data", "update_display_data"):
            shown.append((message["msg_type"], message["content"]))

    try:
        reply = client.execute_interactive(CELL, timeout=120, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    kinds = [kind for kind, _ in shown]
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    assert len({content["transient"]["display_id"] for _, content in shown}) == 1
    assert "ended: epochs" in shown[-1][1]["data"]["text/html"]
    assert "<svg" in shown[-1][1]["data"]["text/html"]
