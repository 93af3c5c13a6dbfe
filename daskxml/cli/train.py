"""``daskxml train`` and ``simulate``, and ``runs``, ``attach`` and ``stop`` on a scheduler."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import daskxml
from daskxml.api.run import split_given
from daskxml.cli.arguments import Options
from daskxml.config import DEFAULT_RUN_FILE, RunConfig, load_run_config
from daskxml.config.run import as_toml
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.text import printable
from daskxml.models.kinds import TRAINED
from daskxml.observe.terminal import PlainProgress, make_progress, print_lines, print_metrics

if TYPE_CHECKING:
    from daskxml.api.runs import RunHandle  # which imports Dask

RUNS = Path("runs")
INTERRUPTED = 130
FAILED = "failed"  # how the state of a failed run begins; the reason follows


def train(options: Options) -> int:
    """Train here or on a cluster, or start a run there and leave it."""
    given = {"cluster.workers": options.workers, "cluster.device": options.device}
    named, rows = split_given(options.rows)
    options.train = [*rows, *(options.train or [])]
    config = _resolve(options, _run_file(named, options), given)
    stem = config.run.name or Path(named or "run").stem
    out = options.out or options.resume or free_directory(stem)
    where = {"resume": options.resume, "scheduler": options.scheduler}
    if options.detach:
        return _launch(config, out, **where)
    return _train(config, out, workers=options.workers, **where)


def _run_file(named: str, options: Options) -> str:
    """Return the run file that is named, that of the run to resume, or the default."""
    if named or not (resume := options.resume):
        return named or DEFAULT_RUN_FILE
    stored = Path(resume) / "run.toml"
    if not stored.is_file():
        raise ModelError(f"{resume}: no run to resume here (there is no run.toml)")
    for override in options.overrides:  # the rest of the file would be another's
        if override.partition("=")[0].strip() in ("strategy.name", "model.kind"):
            raise ConfigError(f"{override}: a run goes on as it began; without --resume begin one")
    return str(stored)


def _resolve(options: Options, file: str, given: Mapping[str, Any]) -> RunConfig:
    """Return a run file's settings with those of the command line, which win where given."""
    given = {"data.train": options.train, "data.test": options.test, **given}
    given = {key: value for key, value in given.items() if value not in (None, [])}
    config = load_run_config(file, options.overrides, given)
    if not config.data.train:
        raise ConfigError("no training data: give FILE, or train in the run file's [data]")
    return config


def _launch(config: RunConfig, out: str, **where: Any) -> int:
    """Start a run on a scheduler and leave it; print how to follow and end it."""
    name = daskxml.launch(config, out=out, on_event=PlainProgress(), **where)
    at = f"{name} --scheduler {where['scheduler']}"
    hints = {"follow": f"daskxml attach {at}", "end": f"daskxml stop {at}"}
    print_lines({"run": name, "out": out, **hints})
    return 0


def _train(config: RunConfig, out: str, **arguments: Any) -> int:
    """Print what differs from the defaults, train with a progress display, and print the outcome.

    Returns
    -------
    The exit status; see `print_outcome`.
    """
    print(as_toml(config.changes()), flush=True)
    with make_progress(f"daskxml {config.run.name}".rstrip()) as progress:
        done = daskxml.train(config, out=out, on_event=progress, dashboard=True, **arguments)
    places = {"run": out}
    if arguments.get("scheduler"):  # the dashboard of a local cluster is gone
        places["dashboard"] = progress.view.dashboard
    if done.reason == "interrupt":
        places["go on"] = f"daskxml train --resume {shlex.quote(out)}"
    return print_outcome(done, places)


def print_outcome(done: daskxml.Run, places: Mapping[str, str]) -> int:
    """Print the last metrics of a run that is over, the reason of its end, and its places.

    Returns
    -------
    The exit status: 130 if Ctrl-C ended the run at a merge, else 0.
    """
    measured = [row for row in done.history if row["metrics"]]
    if measured:
        last = measured[-1]
        work = TRAINED[done.model.spec.kind].work(last)
        print(f"after {work}, {last['wall_s']:.1f} s:")
        print_metrics(last["metrics"])
    print_lines({"ended by": done.reason, **places})
    return INTERRUPTED if done.reason == "interrupt" else 0


def free_directory(stem: str) -> str:
    """Return a directory under ``runs/`` that does not exist yet, dated so that names sort by time.

    Examples
    --------
    >>> free_directory("first").startswith("runs/first-")
    True
    """
    dated = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (f"{dated}-{number}" for number in itertools.count(2))
    names = itertools.chain([dated], numbered)
    return str(next(RUNS / name for name in names if not (RUNS / name).exists()))


def simulate(options: Options) -> int:
    """Train on workers whose time is virtual."""
    from daskxml.local import Network

    config = _resolve(options, options.config, {})
    cost, pool_cost = _costs(options, config)
    network = _with(
        Network(), bandwidth_bytes_s=options.bandwidth, latency_s=options.latency,
        message_s=options.message,
    )  # fmt: skip
    print(f"simulating {config.algorithm} in {options.out}", flush=True)
    with make_progress(f"daskxml {config.run.name}".rstrip()) as progress:
        done = daskxml.simulate(
            config,
            options.speeds,
            cost=cost,
            network=network,
            pools=dict(options.pools),
            pool_cost=pool_cost,
            out=options.out,
            on_event=progress,
        )
    return print_outcome(done, {"run": options.out})


def _costs(options: Options, config: RunConfig) -> tuple[Any, Any]:
    """Return the cost of batches, as given or as on a V100, and that of pools."""
    from daskxml.local import CostModel, cost_by_epochs, v100_cost

    def given(costs: Sequence[float]) -> Any:
        named = zip(("fixed_s", "per_row_s", "per_nonzero_s"), costs, strict=True)
        return _with(CostModel(**dict(named)), jitter=options.jitter)

    def cost(spec: Any) -> Any:
        if options.cost:
            return given(options.cost)
        return _with(v100_cost(spec), jitter=options.jitter)

    if options.pool_cost:
        return cost, given(options.pool_cost)
    if options.pool_ratio is None:
        return cost, None
    largest = config.make_strategy().max_batch_rows()
    return cost, lambda spec: cost_by_epochs(cost(spec), options.pool_ratio, largest)


def _with(default: Any, **given: Any) -> Any:
    """Return a default with the values that are given."""
    return replace(default, **{name: value for name, value in given.items() if value is not None})


# ----------------------------------------------------------------------- runs on a scheduler


def runs(options: Options) -> int:
    """Print a table of the runs, or one JSON object a line."""
    records = daskxml.runs(scheduler=options.scheduler)
    if options.json:
        for record in records:
            shown = {each.name: getattr(record, each.name) for each in fields(record) if each.repr}
            print(json.dumps(shown))
    elif records:
        Console(highlight=False).print(runs_table(records))
        for record in records:
            if record.state.startswith(FAILED):
                print(printable(f"{record.run} {record.state}"))
    else:
        print(f"no runs on {options.scheduler}")
    return 0


def attach(options: Options) -> int:
    """Show a run's progress from its first mega-batch on; Ctrl-C leaves the run as it is."""
    try:
        with make_progress(f"daskxml {options.run}") as progress:
            run = daskxml.attach(options.run, scheduler=options.scheduler)
            done = run.follow(on_event=progress)
    except KeyboardInterrupt:
        print(
            "the run continues; "
            f"`daskxml stop {options.run} --scheduler {options.scheduler}` ends it"
        )
        return INTERRUPTED
    print_outcome(done, {"run": str(done.out or ""), "dashboard": progress.view.dashboard})
    return 0


def stop(options: Options) -> int:
    """End a run at a merge, with a checkpoint; wait until it is over and say where it is."""
    run = daskxml.attach(options.run, scheduler=options.scheduler)
    over = run.stop(forget_it=options.forget)
    print_lines({"run": over.run, "state": over.state, "out": over.out})
    return 0


def runs_table(records: Iterable[RunHandle]) -> Table:
    """Lay out runs in the order in which they began.

    Examples
    --------
    >>> from daskxml.api.runs import RunHandle
    >>> record = RunHandle(run="a1", name="", strategy="elastic", state="training",
    ...                    is_over=False, is_detached=True, begun_at_s=0.0)
    >>> table = runs_table([record])
    >>> [str(list(column.cells)[0]) for column in table.columns][:3], table.row_count
    (['a1', 'elastic', 'training'], 1)
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    for header in ("name", "state"):
        table.add_column(header, overflow="fold")
    table.add_column("begun", no_wrap=True)
    for header in ("mega-\nbatches", "P@1"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("directory", overflow="fold")  # never cut: users copy it
    for record in records:
        begun = time.localtime(record.begun_at_s)
        is_today = begun[:3] == time.localtime()[:3]
        precision = f"{record.metrics['P@1']:.4f}" if "P@1" in record.metrics else ""
        state = FAILED if record.state.startswith(FAILED) else record.state
        state += "" if record.is_detached else " (attached)"
        cells = (
            record.run, record.name or record.strategy, state,
            time.strftime("%H:%M" if is_today else "%Y-%m-%d", begun), f"{record.megabatches:,}",
            precision, record.out,
        )  # fmt: skip
        table.add_row(*(Text(printable(cell)) for cell in cells))  # somebody else may have named it
    return table
