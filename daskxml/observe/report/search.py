"""The page and the table of a search: what each trial was given, and what it reached."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daskxml.core.errors import ModelError
from daskxml.observe.chart import Chart, Points, Series
from daskxml.observe.html import render
from daskxml.observe.report.tables import write_csv
from daskxml.observe.report.write import PAGE

TEMPLATE, TABLE = "search.html.jinja", "trials.csv"
COMPLETE, PRUNED, FAILED, RUNNING = "complete", "pruned", "failed", "running"
_MOST_CURVES = 12  # of the best trials
_DECADES = 2  # a wider range of a setting is drawn by its logarithm


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial of a search.

    Attributes
    ----------
    number
        Counted from 0.
    state
        ``complete``, ``pruned``, ``failed`` or ``running``.
    settings
        Values by ``section.key`` of the run file.
    value
        The metric on the validation rows, of the model that the trial keeps; of a pruned trial,
        the best so far; None before the first evaluation.
    evaluations
        The metric of each evaluation, by its number, from 1.
    epochs, seconds
        What it trained; seconds of training and merging.
    problem
        Why it failed, or was pruned without a comparison.
    out
        Its directory; None if it has none.
    """

    number: int
    state: str
    settings: dict[str, Any]
    value: float | None = None
    evaluations: dict[int, float] = field(default_factory=dict)
    epochs: float = 0.0
    seconds: float = 0.0
    problem: str = ""
    out: Path | None = None


def best_trial(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the complete trial with the highest value; None if none is complete.

    Examples
    --------
    >>> trials = [TrialRecord(number=i, state="complete", settings={}, value=v)
    ...           for i, v in enumerate((0.25, 0.5))]
    >>> best_trial(trials).number
    1
    """
    complete = [trial for trial in trials if trial.state == COMPLETE]
    return max(complete, key=_rank, default=None)


def _rank(trial: TrialRecord) -> float:
    return -math.inf if trial.value is None else trial.value


def write_search(folder: Path, trials: Sequence[TrialRecord], metric: str) -> None:
    """Write ``index.html`` and ``trials.csv`` into the folder of a search; old ones are replaced.

    Raises
    ------
    ModelError
        If they cannot be written.
    """
    keys = list(dict.fromkeys(key for trial in trials for key in trial.settings))
    rows = [_row(trial, keys, metric) for trial in trials]
    write_csv(folder / TABLE, rows, header=("trial", "state", metric))
    page = render(
        TEMPLATE,
        name=folder.absolute().name,
        metric=metric,
        trials=sorted(trials, key=lambda trial: (trial.state != COMPLETE, -_rank(trial))),
        counts={state: sum(trial.state == state for trial in trials) for state in _STATES},
        best=best_trial(trials),
        keys=keys,
        charts=charts(trials, keys, metric),
    )
    try:
        (folder / PAGE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{folder / PAGE}: cannot be written ({error.strerror})") from error


_STATES = (COMPLETE, PRUNED, FAILED, RUNNING)


def _row(trial: TrialRecord, keys: Sequence[str], metric: str) -> dict[str, Any]:
    settings = {key: _text(trial.settings.get(key)) for key in keys}
    return {
        "trial": trial.number,
        "state": trial.state,
        metric: trial.value,
        "evaluations": len(trial.evaluations),
        "epochs": trial.epochs,
        "seconds": trial.seconds,
        **settings,
        "problem": trial.problem,
    }


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, bool | list) else value


# --------------------------------------------------------------------------------- charts


def charts(trials: Sequence[TrialRecord], keys: Sequence[str], metric: str) -> list[Chart]:
    """Return the charts of a search: values in their order, curves, and values by each setting."""
    return [
        _in_order(trials, metric),
        _curves(trials, metric),
        *(_by_setting(trials, key, metric) for key in keys),
    ]


def _points(trials: Sequence[TrialRecord], state: str, places: dict[int, float]) -> Points:
    found = [
        (places[trial.number], trial.value)
        for trial in trials
        if trial.state == state and trial.value is not None and trial.number in places
    ]
    return tuple(sorted(found))


def _dots(trials: Sequence[TrialRecord], places: dict[int, float]) -> tuple[Series, ...]:
    """Return the values of complete and of pruned trials as dots at these places."""
    return tuple(
        Series(name=state, points=_points(trials, state, places), is_joined=False)
        for state in (COMPLETE, PRUNED)
    )


def _in_order(trials: Sequence[TrialRecord], metric: str) -> Chart:
    best, so_far = [], -math.inf
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.state == COMPLETE:
            so_far = max(so_far, _rank(trial))
            best.append((float(trial.number), so_far))
    dots = _dots(trials, {trial.number: float(trial.number) for trial in trials})
    return Chart(
        name="trials",
        title=f"{metric} of the trials",
        x_label="trial",
        y_label=f"{metric} on the validation rows",
        series=(*dots, Series(name="best so far", points=tuple(best))),
    )


def _curves(trials: Sequence[TrialRecord], metric: str) -> Chart:
    shown = sorted(trials, key=_rank, reverse=True)[:_MOST_CURVES]
    few = f", the best {_MOST_CURVES}" * (len(trials) > _MOST_CURVES)
    return Chart(
        name="curves",
        title=f"{metric} by evaluation{few}",
        x_label="evaluation",
        y_label=f"{metric} on the validation rows",
        series=tuple(
            Series(
                name=f"trial {trial.number}",
                points=tuple((float(step), it) for step, it in sorted(trial.evaluations.items())),
            )
            for trial in shown
        ),
    )


def _by_setting(trials: Sequence[TrialRecord], key: str, metric: str) -> Chart:
    """Return the values by a setting: a number, or the place of a choice in their list."""
    values = {it.number: it.settings[key] for it in trials if key in it.settings}
    if all(type(value) in (int, float) for value in values.values()):
        places = {number: float(value) for number, value in values.items()}
        label = key
        low, high = min(places.values()), max(places.values())
        if low > 0 and high / low > 10**_DECADES:
            places = {number: math.log10(value) for number, value in places.items()}
            label = f"{key}, as a power of 10"
    else:
        texts = sorted({json.dumps(value) for value in values.values()})
        places = {number: float(texts.index(json.dumps(it))) for number, it in values.items()}
        label = f"{key}: " + ", ".join(f"{i} is {text}" for i, text in enumerate(texts))
    return Chart(
        name=key.replace(".", "_"),
        title=f"{metric} by {key}",
        x_label=label,
        y_label=f"{metric} on the validation rows",
        series=_dots(trials, places),
    )
