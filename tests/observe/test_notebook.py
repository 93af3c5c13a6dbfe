"""What a notebook shows of a run: well-formed, true, and without anything to load."""

import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from daskxml.api.in_process import simulate
from daskxml.api.run import Run
from daskxml.observe.terminal import notebook_progress
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


def test_one_of_each_is_counted_in_words(data):
    once = {**VALUES, "training": {"megabatches": 1}}
    _, text = show(simulate(once, [1], train=data["train"]))
    assert "1 mega-batch, " in text
    assert "1 worker, " in text
    tree = {"model": {"kind": "trees"}, "training": {"trees": 1}}
    assert "1 tree, " in show(simulate(tree, [1], train=data["train"]))[1]


def test_a_run_without_mega_batches_is_shown():
    model = SimpleNamespace(header=SimpleNamespace(training={}))
    run = Run(model, [], Path("/runs/<b>&"), "interrupt")
    _, text = show(run)
    assert "0 mega-batches" in text
    assert "/runs/<b>&" in text


def test_outside_of_notebooks_nothing_is_drawn():
    assert notebook_progress() is None


CELL = """
import numpy as np, daskxml
run = daskxml.train({"training": {"trees": 3}, "model": {"kind": "trees"}},
                    train=(np.eye(64), np.eye(64)))
run
"""


@pytest.mark.slow
def test_a_cell_tells_of_a_run_and_shows_its_result():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=60)
    lines, shown = [], []

    def hear(message):
        if message["msg_type"] == "stream":
            lines.append(message["content"]["text"])
        elif message["msg_type"] == "execute_result":
            shown.append(message["content"]["data"]["text/html"])

    try:
        reply = client.execute_interactive(CELL, timeout=120, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    assert "tree 3  " in "".join(lines)
    assert "ended: trees" in "".join(lines)
    (html,) = shown
    assert "3 trees" in html
