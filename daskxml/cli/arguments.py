"""What each command of ``daskxml`` takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from daskxml._version import __version__
from daskxml.cli.report_arguments import add_compare, add_log, add_report
from daskxml.cli.values import number, pool, positive, ranks, speeds, three_numbers
from daskxml.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions of one line."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def build_parser() -> Parser:
    """Return the parser of the whole command line.

    Examples
    --------
    >>> build_parser().parse_args(["evaluate", "runs/first", "test.txt", "--k", "1,5"]).k
    (1, 5)
    """
    parser = Parser(prog="daskxml", description="Train sparse extreme multi-label classifiers.")
    parser.add_argument("--version", action="version", version=f"daskxml {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (add, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        add(command)
    return parser


def _add_train(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "config",
        nargs="?",
        metavar="RUN.toml",
        help="run file, or the name of one that comes along; may be left out with --resume",
    )
    command.add_argument("--train", nargs="+", metavar="FILE", help="training rows")
    command.add_argument("--test", nargs="+", metavar="FILE", help="test rows")
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--scheduler", metavar="ADDRESS", help="a running scheduler, tcp://HOST:PORT"
    )
    where.add_argument("--workers", type=positive, metavar="N", help="local workers, pools aside")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        help="override a value of the run file; may be given again",
    )
    command.add_argument(
        "--out", metavar="DIR", help="where the run is written (default: in runs/)"
    )
    command.add_argument("--resume", metavar="DIR", help="go on from this run's last checkpoint")
    command.add_argument(
        "--dashboard-prefix",
        metavar="PATH",
        help="what the paths of a local cluster's dashboard begin with (behind a proxy): /user/me",
    )
    command.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        help="where workers step (default: auto, on a GPU where a worker has one)",
    )
    command.add_argument(
        "--protocol",
        choices=("tcp", "ucx"),
        help="what local workers talk, or the scheduler must (default: ucx between GPUs, else "
        "what Dask is set to)",
    )
    command.add_argument(
        "--detach",
        action="store_true",
        help="leave the run to the scheduler once it is under way; see attach, runs and stop",
    )
    add_log(command)


def _add_runs(command: argparse.ArgumentParser) -> None:
    _add_scheduler(command)
    command.add_argument("--json", action="store_true", help="print one JSON object a line")


def _add_attach(command: argparse.ArgumentParser) -> None:
    _add_run(command)
    add_log(command)


def _add_stop(command: argparse.ArgumentParser) -> None:
    _add_run(command)
    command.add_argument(
        "--forget", action="store_true", help="then let scheduler and workers forget it"
    )


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="as `daskxml runs` calls it")
    _add_scheduler(command)


def _add_scheduler(command: argparse.ArgumentParser) -> None:
    command.add_argument("--scheduler", required=True, metavar="ADDRESS", help="tcp://HOST:PORT")


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_simulate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "config", metavar="RUN.toml", help="run file, or the name of one that comes along"
    )
    command.add_argument(
        "--speeds",
        type=speeds,
        metavar="S,S,...",
        help="a worker for each, as 1,0.92,0.84,0.76, or with names: gpu=1,cpu=1",
    )
    command.add_argument(
        "--pool",
        action="append",
        type=pool,
        default=[],
        dest="pools",
        metavar="NAME=THREADS",
        help="this worker is a pool of threads that update one model; may be given again",
    )
    command.add_argument("--out", required=True, metavar="DIR", help="where the run is written")
    command.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="RUN.toml",
        help="more run files; each gets a folder in DIR, and DIR/table.csv compares them",
    )
    command.add_argument("--train", nargs="+", metavar="FILE", help="training rows")
    command.add_argument("--test", nargs="+", metavar="FILE", help="test rows")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        help="override a value of the run files; may be given again",
    )
    add_log(command)
    _add_costs(command)


def _add_costs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cost",
        type=three_numbers,
        metavar="FIXED_S,PER_ROW_S,PER_NONZERO_S",
        help="seconds of a batch at speed 1 (default: what the model takes on a V100)",
    )
    pools = command.add_mutually_exclusive_group()
    pools.add_argument(
        "--pool-cost",
        type=three_numbers,
        metavar="FIXED_S,PER_ROW_S,PER_NONZERO_S",
        help="seconds of a pool's batch at speed 1 (default: as anybody's)",
    )
    pools.add_argument(
        "--pool-ratio",
        type=number,
        metavar="RATIO",
        help="an epoch takes a pool so many times as long as a worker with its largest batches, "
        "both at speed 1 (56 CPU threads and a V100: 236 to 317)",
    )
    command.add_argument(
        "--jitter",
        type=number,
        metavar="SIGMA",
        help="spread of batch times (default: 0.05)",
    )
    command.add_argument(
        "--bandwidth", metavar="SIZE/s", help="between workers (default: 25GB/s, one NVLink)"
    )
    command.add_argument(
        "--latency", type=number, metavar="S", help="between workers (default: 1e-5)"
    )
    command.add_argument(
        "--message",
        type=number,
        metavar="S",
        help="to and from the scheduler (default: 1e-4)",
    )
    command.add_argument(
        "--calibrate", metavar="RUN_DIR", help="take costs and speeds from this real run's history"
    )


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    _add_model_and_data(command)
    command.add_argument("--k", type=ranks, default=(1, 3, 5), help="ranks (default: 1,3,5)")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_predict(command: argparse.ArgumentParser) -> None:
    _add_model_and_data(command)
    command.add_argument("--top-k", type=positive, default=5, metavar="K", help="labels a row")
    command.add_argument(
        "--out",
        required=True,
        metavar="FILE.npz",
        help="scores as SciPy CSR; replaced if it is there",
    )


def _add_inspect(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", nargs="+", metavar="FILE", help="text, plain or gzipped")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_generate(command: argparse.ArgumentParser) -> None:
    command.add_argument("out", metavar="OUT", help="file to write; .gz compresses; replaced")
    command.add_argument("--rows", type=positive, default=24_000, help="(default: %(default)s)")
    command.add_argument("--features", type=positive, default=5_000, help="(default: %(default)s)")
    command.add_argument("--labels", type=positive, default=2_000, help="(default: %(default)s)")
    command.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    command.add_argument(
        "--test", metavar="FILE", help="also write a sixth as many test rows of the same kind"
    )


def _add_demo(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", metavar="DIR", help="where the run is written (default: in runs/)"
    )
    command.add_argument("--workers", type=positive, default=2, metavar="N", help="(default: 2)")


def _add_bench(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "suite", metavar="SUITE", help="a suite that comes along, like smoke, or a TOML file"
    )
    command.add_argument(
        "--out", metavar="DIR", help="where it is written, and goes on (default: runs/bench-SUITE)"
    )
    command.add_argument("--data", metavar="FOLDER", help="where the files of real data sets lie")
    command.add_argument(
        "--against", metavar="DIR", help="tell what got worse since this earlier bench"
    )


def _add_model_and_data(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="DIR", help="directory of a run or a model")
    command.add_argument("data", nargs="+", metavar="DATA", help="rows as text, plain or gzipped")


_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "train": (_add_train, "train a model as a run file says"),
    "runs": (_add_runs, "list the runs that a scheduler has"),
    "attach": (_add_attach, "follow a run of a scheduler, as train does"),
    "stop": (_add_stop, "end a run of a scheduler, with a checkpoint"),
    "simulate": (_add_simulate, "train as run files say, on workers whose time is virtual"),
    "evaluate": (_add_evaluate, "score a trained model on labelled rows"),
    "predict": (_add_predict, "write a trained model's best labels of every row"),
    "report": (add_report, "write a page, pictures and tables about runs"),
    "compare": (add_compare, "tell when each run reached a level of a metric"),
    "inspect": (_add_inspect, "describe a data file and its problems"),
    "generate": (_add_generate, "write generated rows with something to learn"),
    "bench": (_add_bench, "do a suite of runs and benchmarks, with one table"),
    "doctor": (_add_doctor, "say what is installed here, what is missing, and what mends it"),
    "demo": (_add_demo, "generate data, train on two local workers, and show what came out"),
}

Options = Any  # an argparse.Namespace with the attributes that the functions above name
