"""What a notebook shows of a run: well-formed, true, and without anything to load."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from daskxml.api.run import Run
from daskxml.api.simulate import simulate
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
    (svg,) = (element for element in root.iter() if element.tag.endswith("svg"))
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
