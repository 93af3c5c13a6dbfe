"""Runs by their directories: read, compared, and written as a page.

A run may be under way, broken off or damaged; what could not be read of it is listed.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.files import check_folder, is_locked, read_json, replace_text
from daskxml.core.text import cleaned, one_line, parse_json, printable
from daskxml.core.work_stats import StageRecord
from daskxml.observe import run_view
from daskxml.observe.charts import MOST_WORKERS, Chart, comparison, worker_charts
from daskxml.observe.html import render
from daskxml.observe.wording import dotted, history_event
from daskxml.records.environment import ENVIRONMENT_FILE, read_starts
from daskxml.records.row_schema import check_row
from daskxml.records.run_dir import HISTORY_FILE, RUN_FILE

PAGE, TEMPLATE, DEFAULT_METRIC = "index.html", "page.html.jinja", "P@1"
_MOST_EVENTS = 100
SIMULATION_FILE, MODEL_FILE = "simulation.json", "model.json"
NEEDED = {"megabatch", "rows", "train_s", "merge_s", "metrics", "workers"}  # of a row


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as its directory has it.

    Attributes
    ----------
    name
        Short, and unique in a report.
    directory
        Where it was found.
    config
        The sections of its run file, as plain values; empty if there is none.
    run_file
        The text of its run file.
    history
        Rows of mega-batches 1, 2, ...; see `daskxml.session.history`.
    state
        How it ended, or that it is under way.
    starts
        Its environments, see `daskxml.records.environment`.
    simulation
        Speeds and costs of a simulated run; None for a real one.
    problems
        Sentences on what could not be read.
    """

    name: str
    directory: Path
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    run_file: str = ""
    history: tuple[run_view.Row, ...] = ()
    state: str = ""
    starts: tuple[dict[str, Any], ...] = ()
    simulation: dict[str, Any] | None = None
    problems: tuple[str, ...] = ()

    @functools.cached_property
    def course(self) -> run_view.Course:
        """What its charts show."""
        return run_view.Course(self.name, self.history)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        return run_view.last_metrics(self.history)

    @property
    def stages(self) -> list[StageRecord]:
        """How the rows of the last start came to the workers, as far as it is recorded."""
        found = self.starts[-1].get("stages", ()) if self.starts else ()
        try:
            return [StageRecord(**stage) for stage in found]
        except TypeError:
            return []

    @property
    def worker_charts(self) -> list[Chart]:
        """What its workers did; of many, the first."""
        return worker_charts(self.course, self.course.workers[:MOST_WORKERS])

    @property
    def events(self) -> list[str]:
        """A line on each event of its rows."""
        return [
            history_event(row, event) for row in self.history for event in row.get("events", ())
        ]


def read_runs(directories: Sequence[str | Path]) -> list[StoredRun]:
    """Read runs, and all runs in folders of them.

    Raises
    ------
    ModelError
        If a directory holds no run.
    """
    paths = (path for given in directories for path in find_runs(Path(given)))
    found = {path.absolute(): path for path in paths}
    names = name_runs([*found])
    return [read_run(path, name) for path, name in zip(found.values(), names, strict=True)]


def find_runs(directory: Path) -> list[Path]:
    """Return the directory if it holds a run, else those directly in it that do.

    Raises
    ------
    ModelError
        If there is none.
    """
    if (directory / HISTORY_FILE).is_file():
        return [directory]
    inside = sorted(directory.iterdir()) if directory.is_dir() else []
    if found := [path for path in inside if path.is_dir() and _holds_run(path)]:
        return found
    if _holds_run(directory):
        return [directory]
    raise ModelError(f"{directory}: no run here (there is no {RUN_FILE} and no {HISTORY_FILE})")


def _holds_run(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (RUN_FILE, HISTORY_FILE))


def name_runs(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends that are all different, of paths that are.

    Examples
    --------
    >>> name_runs([Path("/runs/a/first"), Path("/runs/b/first"), Path("/runs/b/second")])
    ['a/first', 'b/first', 'b/second']
    """
    parts, names = 0, list[str]()
    while len(set(names)) < len(paths):
        parts += 1
        names = ["/".join(path.parts[-parts:]) for path in paths]
    return names


def read_run(directory: Path, name: str) -> StoredRun:
    """Read one run, with texts that do nothing to a terminal.

    Its ``problems`` list what is missing or damaged.
    """
    problems: list[str] = []
    check_folder(directory)
    run_file, config = _read_config(directory / RUN_FILE, problems)
    history, starts = read_rows(directory / HISTORY_FILE, problems), read_starts(directory)
    if not starts and (directory / ENVIRONMENT_FILE).exists():
        problems.append(f"{ENVIRONMENT_FILE} cannot be read; left out")
    return StoredRun(
        name=printable(name),
        directory=directory,
        config=cleaned(config),
        run_file=run_file,
        history=tuple(map(cleaned, history)),
        state=printable(_state(directory, len(history))),
        starts=tuple(map(cleaned, starts)),
        simulation=cleaned(read_json(directory / SIMULATION_FILE)),
        problems=tuple(map(one_line, problems)),
    )


def _read_config(path: Path, problems: list[str]) -> tuple[str, dict[str, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({getattr(error, 'strerror', None) or error})")
        return "", {}


def read_rows(path: Path, problems: list[str]) -> list[run_view.Row]:
    """Return the rows of a history that is perhaps being written, or was cut off.

    A row that comes again replaces the first and all after it: the run went back to a checkpoint.
    Lines that are no rows, and rows after a gap, are left out and added to ``problems``.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            problems.append(f"{path.name} cannot be read ({error.strerror or error})")
        return []
    rows: list[run_view.Row] = []
    lines = text.removesuffix("\n").split("\n") if text else []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is None:
            is_cut = number == len(lines) and not text.endswith("\n")
            problem = "is cut off" if is_cut else "is no row of a history"
            problems.append(f"{path.name}: line {number} {problem}; left out")
        elif row["megabatch"] > len(rows) + 1:
            problems.append(f"{path.name}: line {number} comes after a gap; left out")
        else:
            rows[row["megabatch"] - 1 :] = [row]
    return rows


def _row(line: str) -> run_view.Row | None:
    """Return a line's row, or None if it is none."""
    try:
        row = parse_json(line)
        check_row(row, complete=False)
    except ValueError:
        return None
    return dict(row) if row.keys() >= NEEDED else None


def _state(directory: Path, megabatches: int) -> str:
    """Return how the run ended, or that a process holds its directory: it is under way."""
    if is_locked(directory):
        return f"under way, {megabatches} mega-batches so far"
    header = read_json(directory / MODEL_FILE)
    training = header.get("training", {}) if header else {}
    if not isinstance(training, dict):
        return "ended, with a damaged model"
    if header is None or training.get("megabatches", megabatches) != megabatches:
        return f"broken off after {megabatches} mega-batches"
    reason = str(training.get("ended", ""))
    return {"interrupt": "interrupted", "": "ended"}.get(reason, f"ended by {reason}")


# ----------------------------------------------------------------- runs beside each other


def folder_of(runs: Sequence[StoredRun]) -> Path:
    """Return where a report goes: into the one run's directory, or beside the first."""
    first = runs[0].directory
    return first / "report" if len(runs) == 1 else first.parent / "report"


def by_data(runs: Sequence[StoredRun]) -> list[list[StoredRun]]:
    """Return runs of the same files together; those without files are with the first."""
    found: dict[str, list[StoredRun]] = {}
    for run in runs:
        data = run.config.get("data", {})
        files = str([data.get(name) for name in ("train", "test") if data.get(name)] or "")
        found.setdefault(files or next(iter(found), ""), []).append(run)
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs, real or simulated, over or under way, by when a metric reached a level.

    Attributes
    ----------
    runs
        At least one.
    metric, level
        What is compared, and the level to reach; None where it was never measured.
    """

    runs: Sequence[StoredRun]
    metric: str
    level: float | None

    @classmethod
    def of(
        cls, runs: Sequence[StoredRun], metric: str | None = None, level: float | None = None
    ) -> Comparison:
        """Compare runs.

        Parameters
        ----------
        runs
            At least one; see `daskxml.observe.report.read_runs`.
        metric
            None takes what the first run's ``training.target_metric`` names, if it was measured.
        level
            None takes 95 % of the best of all runs.

        Raises
        ------
        ConfigError
            If no run has measured the metric that is asked for: naming those that were.
        """
        known = list(
            dict.fromkeys(name for r in runs for row in r.history for name in run_view.scores(row))
        )
        if metric is not None:
            _check(metric, known, runs)
        aim = runs[0].config.get("training", {}).get("target_metric", "")
        wanted = (metric, aim, DEFAULT_METRIC, *known)  # the first that was measured
        chosen: str = next((name for name in wanted if name in known), DEFAULT_METRIC)
        values = (run_view.best_value(run.history, chosen) for run in runs)
        best = max((value for value in values if value is not None), default=None)
        if level is None and best is not None:
            level = run_view.NEAR_BEST * best
        return cls(runs=runs, metric=chosen, level=level if known else None)

    def write(self, folder: Path) -> Path:
        """Write the page of a report, which needs no other file; one that is there is replaced.

        Raises
        ------
        ModelError
            If ``folder`` cannot be written to.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"{folder}: cannot be made ({error.strerror}); choose another --out"
            raise ModelError(problem) from error
        page = folder / PAGE
        replace_text(page, self._page())
        return page

    def _page(self) -> str:
        runs = self.runs
        names = dict.fromkeys(name for run in runs for name in run.metrics if "@" in name)
        return render(
            TEMPLATE,
            runs=runs,
            charts=comparison(runs, self.metric, self.level),
            metric=self.metric,
            level=self.level,
            summary=self.summary(),
            metrics={name: [run.metrics.get(name) for run in runs] for name in names},
            differences=differences(runs),
            most_events=_MOST_EVENTS,
            most_workers=MOST_WORKERS,
        )

    def summary(self) -> list[dict[str, Any]]:
        """Return a row for every run: how it ended, how far it came, when it reached the level.

        Seconds are of training and merging; ``wall_s`` includes evaluation. Missing values are
        None.
        """
        return [self._summary_row(run) for run in self.runs]

    def _summary_row(self, run: StoredRun) -> dict[str, Any]:
        last, kind = run.history[-1] if run.history else {}, run.config.get("model", {}).get("kind")
        train_s = run_view.elapsed(run.history)[-1] if run.history else 0.0
        spent = run_view.phases(run.history)
        training_s = spent["computing"] + spent["waiting"]
        return {
            "run": run.name,
            "strategy": run.config.get("strategy", {}).get("name") or kind,
            "workers": len(run.course.workers) or None,
            "time": "real" if run.simulation is None else "virtual",
            "state": run.state,
            "megabatches": len(run.history),
            "epochs": last.get("epoch"),
            "rows": last.get("rows"),
            "train_s": train_s,
            "wall_s": last.get("wall_s"),
            "rows_per_s": last["rows"] / train_s if train_s else None,
            "waiting_share": spent["waiting"] / training_s if training_s else None,
            "last": run.metrics.get(self.metric),
            "best": run_view.best_value(run.history, self.metric),
            # Without a level no run has measured the metric, and so none has reached any.
            "reached": run_view.reach(run.history, self.metric, self.level or 0.0),
        }


def _check(metric: str, known: Sequence[str], runs: Sequence[StoredRun]) -> None:
    if not known:
        where = str(runs[0].directory) if len(runs) == 1 else f"any of the {len(runs)} runs"
        raise ConfigError(f"no metric was measured in {where}: train with --test FILE")
    if metric not in known:
        raise ConfigError(f"--metric {metric}: no run measured it; there are {', '.join(known)}")


# ----------------------------------------------------------------------------- tables


def differences(runs: Sequence[StoredRun]) -> dict[str, list[Any]]:
    """Return the settings, other than the name, that differ among runs, with each run's value.

    Examples
    --------
    >>> from pathlib import Path
    >>> first, second = ({"optimizer": {"name": n}, "run": {"seed": 0}} for n in ("sgd", "adam"))
    >>> differences([StoredRun(name="a", directory=Path(), config=first),
    ...              StoredRun(name="b", directory=Path(), config=second)])
    {'optimizer.name': ['sgd', 'adam']}
    """
    flat = [dotted(run.config) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    values = {key: [settings.get(key) for settings in flat] for key in keys}
    return {
        key: found
        for key, found in values.items()
        if key != "run.name" and any(value != found[0] for value in found)
    }
