"""``daskxml simulate``: train as run files say, on workers whose time is virtual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from daskxml.cli.arguments import Options
from daskxml.cli.progress import make_progress
from daskxml.cli.tables import print_lines, print_metrics
from daskxml.config import RunConfig, load_run_config, parse_size
from daskxml.errors import ConfigError
from daskxml.training.run import Run

INTERRUPTED = 130
_COLUMNS = {
    "best": "best\n{metric}",
    "near_best_s": "s to 95 %\nof it",
    "near_best_rows": "rows to\n95 %",
    "near_top_s": "s to 95 %\nof best\nof all",
    "megabatches": "mega-\nbatches",
    "train_s": "s in\nall",
    "idle_share": "idle",
}
_TABLE_CHARACTERS = 80  # at least, so that no column is cut


def run(options: Options) -> int:
    """Simulate one run, or several beside each other, and show what came out."""
    from daskxml.simulator.calibration import fit_run
    from daskxml.simulator.comparison import compare, write_table

    fitted = fit_run(options.calibrate) if options.calibrate else None
    if fitted is not None:
        print_lines(fitted.lines())
    speeds = options.speeds or (fitted.speeds if fitted else None)
    if speeds is None:
        raise ConfigError("no workers: give --speeds 1,0.9, or --calibrate DIR of a real run")
    files = [options.config, *options.compare]
    configs = dict(zip(_names(files), [_config(options, file) for file in files], strict=True))
    metric = next(iter(configs.values())).training.target_metric
    histories, done = {}, None
    for name, config in configs.items():
        out = Path(options.out) / name if options.compare else Path(options.out)
        done = _simulate(config, speeds, options, fitted, out)
        histories[name] = done.history
        if done.reason == "interrupt":
            return INTERRUPTED
    if options.compare:
        table = compare(histories, metric)
        write_table(Path(options.out) / "table.csv", table)
        console = Console(highlight=False)
        console.width = max(console.width, _TABLE_CHARACTERS)
        console.print(_show(table, metric))
    return 0


def _simulate(config: RunConfig, speeds: Any, options: Options, fitted: Any, out: Path) -> Run:
    from daskxml.simulator import simulate

    print(f"simulating {config.strategy_name} in {out}", flush=True)
    with make_progress(f"daskxml {config.run.name}".rstrip()) as progress:
        done = simulate(
            config,
            speeds,
            cost=lambda spec: _cost(options, fitted, spec),
            network=_network(options, fitted),
            pools=_pools(options, fitted),
            pool_cost=_pool_cost(options, fitted, config),
            out=out,
            on_event=progress,
            loggers=options.loggers,
        )
    measured = [row for row in done.history if row["metrics"]]
    if measured:
        last = measured[-1]
        print(f"after {last['rows']:,} rows, {last['epoch']:.2f} epochs, {last['wall_s']:.1f} s:")
        print_metrics(last["metrics"])
    print_lines({"ended by": done.reason, "run": str(out)})
    return done


def _config(options: Options, file: str) -> RunConfig:
    config = load_run_config(file, options.overrides)
    given = {"data.train": options.train, "data.test": options.test}
    config = load_run_config(config, {key: value for key, value in given.items() if value})
    if not config.data.train:
        raise ConfigError("no training data: give --train FILE, or train in the run file's [data]")
    return config


def _names(files: Sequence[str]) -> Iterator[str]:
    """Yield a folder's name for every run file: its stem, numbered where it comes again."""
    seen: dict[str, int] = {}
    for file in files:
        stem = Path(file).stem
        seen[stem] = seen.get(stem, 0) + 1
        yield stem if seen[stem] == 1 else f"{stem}-{seen[stem]}"


def _cost(options: Options, fitted: Any, spec: Any) -> Any:
    """Return what batches cost: as given, else as fitted, else as on a V100."""
    from daskxml.simulator import v100_cost

    if options.cost:
        return _given_cost(options.cost, options.jitter)
    cost = fitted.cost if fitted else v100_cost(spec)
    return cost if options.jitter is None else replace(cost, jitter=options.jitter)


def _given_cost(costs: Sequence[float], jitter: float | None) -> Any:
    from daskxml.simulator import CostModel

    fixed_s, per_row_s, per_nonzero_s = costs
    cost = CostModel(fixed_s=fixed_s, per_row_s=per_row_s, per_nonzero_s=per_nonzero_s)
    return cost if jitter is None else replace(cost, jitter=jitter)


def _pools(options: Options, fitted: Any) -> dict[str, int]:
    """Return which workers are pools: as given, else as they were in the run that was fitted."""
    return dict(options.pools) or ({} if options.speeds or not fitted else fitted.pools)


def _pool_cost(options: Options, fitted: Any, config: RunConfig) -> Any:
    """Return what a pool's batches cost: as given, else by the ratio of epochs, else None."""
    from daskxml.simulator import cost_by_epochs

    if options.pool_cost:
        return _given_cost(options.pool_cost, options.jitter)
    if options.pool_ratio is None:
        return None
    largest = config.make_strategy().max_batch_rows()
    return lambda spec: cost_by_epochs(_cost(options, fitted, spec), options.pool_ratio, largest)


def _network(options: Options, fitted: Any) -> Any:
    from daskxml.simulator import Network

    given: dict[str, Any] = {}
    if options.bandwidth is not None:
        given["bandwidth_bytes_s"] = float(parse_size(options.bandwidth.removesuffix("/s")))
    if options.latency is not None:
        given["latency_s"] = options.latency
    if options.message is not None:
        given["message_s"] = options.message
    return replace(fitted.network if fitted else Network(), **given)


def _show(table: Sequence[dict[str, Any]], metric: str) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("run", overflow="fold")
    for title in _COLUMNS.values():
        shown.add_column(title.format(metric=metric), justify="right", no_wrap=True)
    for row in table:
        shown.add_row(row["run"], *(_cell(name, row[name]) for name in _COLUMNS))
    return shown


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "idle_share":
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
