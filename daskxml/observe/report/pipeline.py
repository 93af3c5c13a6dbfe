"""The page of a pipeline: its stages with rows, bytes and times, and how often each was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from daskxml.core.errors import ModelError
from daskxml.core.stages import DONE, FAILED, KEPT, SHARED, StageRecord
from daskxml.observe.html import render
from daskxml.observe.report.write import PAGE

TEMPLATE = "pipeline.html.jinja"


def write_pipeline(folder: Path, stages: Sequence[StageRecord]) -> None:
    """Write ``index.html`` into the folder of a pipeline; an old one is replaced.

    Raises
    ------
    ModelError
        If it cannot be written.
    """
    outcomes = (DONE, SHARED, KEPT, FAILED)
    page = render(
        TEMPLATE, name=folder.name, stages=stages, outcomes=outcomes, counts=count_outcomes(stages)
    )
    try:
        (folder / PAGE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{folder / PAGE}: cannot be written ({error.strerror})") from error


def count_outcomes(stages: Sequence[StageRecord]) -> dict[str, Counter[str]]:
    """Return how often each stage had each outcome, by its name.

    Examples
    --------
    >>> count_outcomes([StageRecord(name="read"), StageRecord(name="read", outcome="shared")])
    {'read': Counter({'done': 1, 'shared': 1})}
    """
    counts: dict[str, Counter[str]] = {}
    for stage in stages:
        counts.setdefault(stage.name, Counter())[stage.outcome] += 1
    return counts
