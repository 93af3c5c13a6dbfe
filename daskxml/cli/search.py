"""``daskxml search``: find the settings of a run file by many runs on one cluster."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import daskxml
from daskxml.cli.arguments import Options
from daskxml.cli.train import INTERRUPTED, free_directory
from daskxml.core.errors import ConfigError
from daskxml.observe.report.search import RUNNING, TrialRecord
from daskxml.observe.report.write import PAGE
from daskxml.observe.terminal import print_lines
from daskxml.observe.wording import note, rounded


def search(options: Options) -> int:
    """Search, with a line for each trial that begins or ends, and print the best.

    Returns
    -------
    The exit status: 130 if Ctrl-C ended it, else 0.
    """
    if not (options.resume or (options.config and options.space)):
        raise ConfigError("give RUN.toml and --space SPACE.toml, or --resume DIR")
    stem = Path(options.config or "search").stem
    out = options.resume or options.out or free_directory(f"search-{stem}")
    try:
        find = daskxml.search
    except ModuleNotFoundError as error:  # says which extra brings it
        raise ConfigError(str(error)) from error
    try:
        found = find(
            options.config,
            options.space,
            train=options.train,
            scheduler=options.scheduler,
            workers=options.workers,
            overrides=options.overrides,
            trials=options.trials,
            parallel=options.parallel,
            on_event=_print_event,
            **({"resume": out} if options.resume else {"out": out}),
        )
    except KeyboardInterrupt:
        print_lines({"go on": f"daskxml search --resume {shlex.quote(out)}"})
        raise
    best = found.best
    print(f"\nbest of {len(found.trials)}: trial {best.number}, {found.metric} {best.value:.4f}")
    print_lines({key: _shown(value) for key, value in best.settings.items()})
    print()
    places = {"run file": f"{out}/best.toml", "model": str(best.out), "report": f"{out}/{PAGE}"}
    is_interrupted = found.reason == "interrupt"
    if is_interrupted:
        places["go on"] = f"daskxml search --resume {shlex.quote(out)}"
    print_lines(places)
    return INTERRUPTED if is_interrupted else 0


def _print_event(event: Mapping[str, Any]) -> None:
    line = _trial_line(event["trial"]) if event["kind"] == "trial" else note(event)
    if line:
        print(line, flush=True)


def _trial_line(trial: TrialRecord) -> str:
    """Return what is told of a trial that begins or ends.

    Examples
    --------
    >>> _trial_line(TrialRecord(number=3, state="running", settings={"strategy.lr": 0.125}))
    'trial 3  begins  strategy.lr = 0.125'
    >>> _trial_line(TrialRecord(number=3, state="pruned", settings={}, value=0.5, epochs=1.5,
    ...                         seconds=2.25))
    'trial 3  pruned  0.5000  epoch 1.50  2.2 s'
    """
    parts = [f"trial {trial.number}"]
    if trial.state == RUNNING:
        settings = (f"{key} = {_shown(value)}" for key, value in trial.settings.items())
        return "  ".join([*parts, "begins", *settings])
    parts.append(trial.state)
    if trial.value is not None:
        parts.append(f"{trial.value:.4f}")
    parts += [f"epoch {trial.epochs:.2f}", f"{trial.seconds:.1f} s", trial.problem]
    return "  ".join(filter(None, parts))


def _shown(value: Any) -> str:
    return rounded(value) if type(value) is float else str(value)
