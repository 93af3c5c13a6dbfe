"""The arguments of each command of ``daskxml``, and the conversion of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from daskxml._version import __version__
from daskxml.core.errors import ConfigError

Options = Any  # an argparse.Namespace with the attributes that the functions below define

_ONE_OBJECT = "print one JSON object"
_BATCH_COST = "FIXED_S,PER_ROW_S,PER_NONZERO_S"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions of one line."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def build_parser() -> Parser:
    """Return the parser of the whole command line.

    The options it returns have ``command``, the name of a function of the module ``module``.

    Examples
    --------
    >>> build_parser().parse_args(["evaluate", "runs/first", "test.txt", "--k", "1,5"]).k
    (1, 5)
    """
    parser = Parser(prog="daskxml", description="Train sparse extreme multi-label classifiers.")
    parser.add_argument("--version", action="version", version=f"daskxml {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, add_arguments, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(module=module)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        add_arguments(command)
    return parser


_TRAIN_MORE = """\
run files that come along:
  best tree                          four label trees: good, in a short time; one of them
  network                            a network, for dense features, or the scores of all labels
  sampled                            a network of a thousand labels and more, on CPUs
  adaptive-sgd elastic static        replicas that are merged, for unequal and for equal workers
  adaptive-hogbatch adaptive-outer adaptive-sgd-paper adaptive-sgd-pool adasum
  adasum-gradients asynchronous central cpu-gpu-hogbatch crossbow elastic-mean elastic-outer
  hogbatch hogbatch-dense hogwild minibatch mirrored slide ssp
                                     other algorithms, and variants of these

examples:
  daskxml train best --train train.txt.gz --test test.txt.gz --out runs/first
  daskxml train network --train rows/*.parquet --set data.validation=0.1 --set strategy.lr=0.02
  daskxml train my.toml --scheduler tcp://host:8786 --out /shared/run
  daskxml train --resume runs/first
"""


def _add_train(command: argparse.ArgumentParser) -> None:
    command.epilog = _TRAIN_MORE
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    add = command.add_argument
    add(
        "config",
        nargs="?",
        metavar="RUN.toml",
        help="run file, or the name of one that comes along; may be left out with --resume",
    )
    _add_rows(command)
    _add_cluster(command)
    _add_overrides(command, "override a value of the run file; may be given again")
    _add_run_directory(command)
    add("--resume", metavar="DIR", help="go on from this run's last checkpoint")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        help="where workers step (default: auto, on a GPU where a worker has one)",
    )
    add(
        "--protocol",
        choices=("tcp", "ucx"),
        help="what local workers talk, or the scheduler must (default: ucx between GPUs, else "
        "what Dask is set to)",
    )
    add(
        "--detach",
        action="store_true",
        help="leave the run to the scheduler once it is under way; see attach, runs and stop",
    )
    _add_loggers(command)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    cluster = command.add_mutually_exclusive_group()
    cluster.add_argument(
        "--scheduler", metavar="ADDRESS", help="a running scheduler, tcp://HOST:PORT"
    )
    cluster.add_argument("--workers", type=positive, metavar="N", help="local workers, pools aside")


def _add_simulate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("config", metavar="RUN.toml", help="run file, or the name of one that comes along")
    add(
        "--speeds",
        type=speeds,
        metavar="S,S,...",
        help="a worker for each, as 1,0.92,0.84,0.76, or with names: gpu=1,cpu=1",
    )
    add(
        "--pool",
        action="append",
        type=pool,
        default=[],
        dest="pools",
        metavar="NAME=THREADS",
        help="this worker is a pool of threads that update one model; may be given again",
    )
    add("--out", required=True, metavar="DIR", help="where the run is written")
    add(
        "--compare",
        nargs="+",
        default=[],
        metavar="RUN.toml",
        help="more run files; each gets a folder in DIR, for daskxml report",
    )
    _add_rows(command)
    _add_overrides(command, "override a value of the run files; may be given again")
    _add_loggers(command)
    _add_costs(command)


def _add_costs(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--cost",
        type=three_numbers,
        metavar=_BATCH_COST,
        help="seconds of a batch at speed 1 (default: what the model takes on a V100)",
    )
    pools = command.add_mutually_exclusive_group()
    pools.add_argument(
        "--pool-cost",
        type=three_numbers,
        metavar=_BATCH_COST,
        help="seconds of a pool's batch at speed 1 (default: as anybody's)",
    )
    pools.add_argument(
        "--pool-ratio",
        type=number,
        metavar="RATIO",
        help="an epoch takes a pool so many times as long as a worker with its largest batches, "
        "both at speed 1 (56 CPU threads and a V100: 236 to 317)",
    )
    add("--jitter", type=number, metavar="SIGMA", help="spread of batch times (default: 0.05)")
    add("--bandwidth", metavar="SIZE/s", help="between workers (default: 25GB/s, one NVLink)")
    add("--latency", type=number, metavar="S", help="between workers (default: 1e-5)")
    add("--message", type=number, metavar="S", help="to and from the scheduler (default: 1e-4)")
    add("--calibrate", metavar="RUN_DIR", help="take costs and speeds from this real run's history")


def _add_runs(command: argparse.ArgumentParser) -> None:
    _add_scheduler(command)
    _add_json(command, "print one JSON object a line")


def _add_attach(command: argparse.ArgumentParser) -> None:
    _add_run(command)
    _add_loggers(command)


def _add_stop(command: argparse.ArgumentParser) -> None:
    _add_run(command)
    command.add_argument(
        "--forget", action="store_true", help="then let scheduler and workers forget it"
    )


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    _add_model_and_data(command)
    command.add_argument("--k", type=ranks, default=(1, 3, 5), help="ranks (default: 1,3,5)")
    _add_json(command)


def _add_predict(command: argparse.ArgumentParser) -> None:
    _add_model_and_data(command)
    text = "labels a row (default: 5)"
    command.add_argument("--top-k", type=positive, metavar="K", help=text)
    command.add_argument(
        "--choose",
        action="store_true",
        help="only labels above their thresholds (see calibrate), at most --top-k a row if given",
    )
    command.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help=".npz (scores as SciPy CSR), .csv, .jsonl or .parquet by its suffix, with names of "
        "labels where the model has them; replaced if it is there; - is JSON lines on stdout",
    )
    text = "let a cluster's workers do it, tcp://HOST:PORT; one broken off goes on where it was"
    command.add_argument("--scheduler", metavar="ADDRESS", help=text)


def _add_mix(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("models", nargs="+", metavar="DIR", help="directories of two or more runs or models")
    text = "where the mixture is written (default: a new directory in runs/)"
    add("--out", metavar="DIR", help=text)
    add(
        "--valid",
        nargs="+",
        metavar="FILE",
        help="rows on which the weights are chosen (default: those that all runs have held out by "
        "data.validation)",
    )
    add("--weights", type=numbers, metavar="W,W", help="one for each model; their sum is 1")


def _add_serve(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("model", metavar="DIR", help="directory of a run or a model")
    add("--host", default="127.0.0.1", help="0.0.0.0 for other machines, too")
    add("--port", type=port, default=8000, help="0: one that is free")
    add("--threads", type=positive, metavar="N", help="batches at a time (default: all cores)")
    add("--batch-rows", type=positive, default=256, metavar="N", help="most rows of a batch")
    add(
        "--batch-wait-ms",
        type=number,
        default=0.0,
        metavar="MS",
        help="how long a request waits for others although a thread is idle",
    )
    add("--request-rows", type=positive, default=1000, metavar="N", help="most rows of a request")
    add("--request-bytes", type=positive, default=16 << 20, metavar="N", help="largest request")
    text = "how long the body of a request may take (default: 30)"
    add("--request-seconds", type=number, default=30.0, metavar="S", help=text)
    add("--allow-reload", action="store_true", help="POST /reload takes a newer model, as SIGHUP")
    text = "look every so many seconds for another model in DIR (default: never)"
    add("--watch", type=number, default=0.0, metavar="S", help=text)


def _add_compress(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("model", metavar="DIR", help="directory of a run or a model")
    add("--out", required=True, metavar="DIR", help="where the smaller model is written")
    add("--rows", nargs="+", metavar="FILE", help="rows on which both models are scored")
    add(
        "--bits",
        type=int,
        choices=(8, 16),
        default=16,
        help="of a weight in a network's first and output layer (default: 16)",
    )
    drops = command.add_mutually_exclusive_group()
    drops.add_argument(
        "--drop",
        type=level,
        metavar="SHARE",
        help="the smallest weights of label trees are dropped, with this share of the sum of all "
        "squares (default: 0.065)",
    )
    drops.add_argument(
        "--lose",
        type=level,
        metavar="P",
        help="drop as many as cost no more of P@1, P@3 and P@5 on the rows, which should be held "
        "out: 0.001",
    )


def _add_calibrate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("model", metavar="DIR", help="directory of a run or a model")
    add(
        "--rows",
        nargs="+",
        metavar="FILE",
        help="rows that it was not trained on (default: those that its run has held out by "
        "data.validation)",
    )
    add(
        "--out", metavar="DIR", help="where the calibrated model is written (default: in its place)"
    )
    text = "labels of a row that are looked at (default: 20, or more where rows have many)"
    add("--k", type=positive, metavar="K", help=text)
    add(
        "--f1",
        choices=("macro", "micro"),
        default="macro",
        help="macro: a threshold for each label; micro: one for all (default: macro)",
    )
    _add_json(command)


def _add_inspect(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "data",
        nargs="+",
        metavar="FILE",
        help="rows as text, Parquet, Arrow, JSON lines, CSV or SciPy npz",
    )
    for kind in ("feature", "label"):
        text = f"a name of a {kind} on each line, for tables that hold names"
        command.add_argument(f"--{kind}-names", metavar="FILE", help=text)
    _add_json(command)


def _add_report(command: argparse.ArgumentParser) -> None:
    _add_run_directories(command)
    command.add_argument(
        "--out",
        metavar="DIR",
        help="where the report is written (default: report/ in the run's directory, or beside the "
        "first of several); files of an earlier report are replaced",
    )
    add = command.add_argument
    add("--metric", metavar="NAME", help="what is compared (default: the target_metric)")
    text = "level of the metric whose time is told (default: 95%% of the best of all runs)"
    add("--at", type=level, metavar="VALUE", help=text)
    _add_json(command, "print one JSON object, and write nothing")


def _add_verify(command: argparse.ArgumentParser) -> None:
    _add_run_directories(command)
    _add_json(command, "print one JSON object a line, with all disagreements")


def _add_bench(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("suite", metavar="SUITE", help="a suite that comes along, like smoke, or a TOML file")
    add("--out", metavar="DIR", help="where it is written, and goes on (default: runs/bench-SUITE)")
    add("--data", metavar="FOLDER", help="where the files of real data sets lie")


def _add_json(command: argparse.ArgumentParser, text: str = _ONE_OBJECT) -> None:
    command.add_argument("--json", action="store_true", help=text)


def _add_rows(command: argparse.ArgumentParser) -> None:
    command.add_argument("--train", nargs="+", metavar="FILE", help="training rows")
    command.add_argument("--test", nargs="+", metavar="FILE", help="test rows")


def _add_overrides(command: argparse.ArgumentParser, text: str) -> None:
    name = "SECTION.KEY=VALUE"
    command.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar=name, help=text
    )


def _add_run_directory(command: argparse.ArgumentParser) -> None:
    text = "where the run is written (default: in runs/)"
    command.add_argument("--out", metavar="DIR", help=text)


def _add_loggers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--log",
        action="append",
        default=[],
        dest="loggers",
        metavar="LOGGER",
        help="tensorboard:DIR, mlflow:URI or wandb:PROJECT, what follows the colon may be left "
        "out; may be given again",
    )


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="as `daskxml runs` calls it")
    _add_scheduler(command)


def _add_scheduler(command: argparse.ArgumentParser) -> None:
    command.add_argument("--scheduler", required=True, metavar="ADDRESS", help="tcp://HOST:PORT")


def _add_model_and_data(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="DIR", help="directory of a run or a model")
    command.add_argument("data", nargs="+", metavar="DATA", help="rows as text, plain or gzipped")


def _add_run_directories(command: argparse.ArgumentParser) -> None:
    text = "directory of a run, or a folder of several"
    command.add_argument("runs", nargs="+", metavar="DIR", help=text)


# By name: the module of `daskxml.cli` with a function of that name, arguments, summary.
_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], str]] = {
    "train": ("train", _add_train, "train a model as a run file says"),
    "runs": ("scheduler", _add_runs, "list the runs that a scheduler has"),
    "attach": ("scheduler", _add_attach, "follow a run of a scheduler, as train does"),
    "stop": ("scheduler", _add_stop, "end a run of a scheduler, with a checkpoint"),
    "simulate": (
        "train", _add_simulate, "train as run files say, on workers whose time is virtual",
    ),
    "evaluate": ("data", _add_evaluate, "score a trained model on labelled rows"),
    "predict": ("data", _add_predict, "write a trained model's best labels of every row"),
    "mix": ("data", _add_mix, "make one model of several, with weights chosen on held-out rows"),
    "serve": ("serve", _add_serve, "answer requests for the best labels over HTTP"),
    "calibrate": (
        "data", _add_calibrate, "make a model's probabilities hold, and find labels' thresholds",
    ),
    "compress": ("data", _add_compress, "write a smaller model that ranks nearly the same labels"),
    "report": ("reports", _add_report, "compare runs: time to a level of a metric, and a page"),
    "verify": (
        "reports", _add_verify, "recompute the decisions and counts of runs from their histories",
    ),
    "inspect": ("data", _add_inspect, "describe a data file and its problems"),
    "bench": ("bench", _add_bench, "do a suite of runs and benchmarks, with one table"),
    "doctor": (
        "machine", _add_json, "say what is installed here, what is missing, and what mends it",
    ),
}  # fmt: skip

# Commands of earlier versions, and what takes their place.
REMOVED = {
    "compare": "daskxml report DIR ... prints the same table",
    "demo": "make demo, or docs/examples/generate.py and daskxml train",
    "export": "read the arrays with safetensors, as docs/guides/predicting.md shows",
    "generate": "docs/examples/generate.py writes rows to try things out with",
    "index": "daskxml compress DIR --bits 8 --out DIR makes a network that ranks a row faster",
    "search": "tune with Optuna, as docs/guides/tuning.md shows",
}


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def port(text: str) -> int:
    """Return a port, 0 to 65535."""
    if not (text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 to 65535")
    return int(text)


def number(text: str) -> float:
    """Return a finite number of at least 0."""
    value = _float(text)
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def level(text: str) -> float:
    """Return a level of a metric, all of which lie between 0 and 1."""
    value = _float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def speeds(text: str) -> dict[str, float]:
    """Return speeds by worker; unnamed workers are called by their position."""
    parts = (part.rpartition("=") for part in text.split(","))
    named = [(name.strip() or str(i), number(s.strip())) for i, (name, _, s) in enumerate(parts)]
    if len(dict(named)) < len(named):
        raise argparse.ArgumentTypeError(f"{text!r} has a name twice")
    return dict(named)


def pool(text: str) -> tuple[str, int]:
    """Return a worker's name and threads, given as ``cpu=4``."""
    name, _, threads = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not a worker's name and threads, as cpu=4")
    return name.strip(), positive(threads.strip())


def numbers(text: str) -> tuple[float, ...]:
    """Return numbers of at least 0, given as ``0.4,0.6``."""
    return tuple(map(number, text.split(",")))


def three_numbers(text: str) -> tuple[float, ...]:
    """Return the cost of a batch: fixed, per row, per non-zero."""
    found = numbers(text)
    if len(found) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers: fixed, row, non-zero")
    return found


def ranks(text: str) -> tuple[int, ...]:
    """Return ranks in ascending order, given as ``1,3,5``."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))
