"""The arguments of each command of ``daskxml``, and the conversion of their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from daskxml._version import __version__
from daskxml.core.errors import ConfigError
from daskxml.core.fields import parse_size

Options = Any  # an argparse.Namespace with the attributes that `COMMANDS` define


class Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions of one line."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and take files that follow options, where argparse has closed the list."""
        found, rest = super().parse_known_args(args, namespace)
        files = [each.dest for each in self._actions if each.nargs == "*"]
        if files and not any(word.startswith("-") for word in rest):
            getattr(found, files[0]).extend(rest)
        elif rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, []


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
    for name, (module, summary, arguments, more) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, epilog=more)
        if more:
            command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.set_defaults(module=module)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        for argument in arguments:
            target: Any = command
            if isinstance(argument, list):  # of which only one may be given
                target = command.add_mutually_exclusive_group()
            for names, settings in argument if isinstance(argument, list) else [argument]:
                target.add_argument(*names, **settings)
    return parser


def _number(kind: type, low: float, high: float, words: str) -> Callable[[str], Any]:
    """Return what reads a number within bounds."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {words}")
        return value

    return read


_LARGEST = sys.float_info.max
positive = _number(int, 1, _LARGEST, "a whole number of at least 1")
count = _number(int, 0, _LARGEST, "a whole number of at least 0")
port = _number(int, 0, 2**16 - 1, "a number of 0 to 65535")
number = _number(float, 0, _LARGEST, "a number of at least 0")
level = _number(float, 0, 1, "a number from 0 to 1")  # as all metrics are


def bandwidth(text: str) -> float:
    """Return bytes a second, given as ``25GB/s``."""
    return float(parse_size(text.removesuffix("/s")))


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


Argument = tuple[tuple[str, ...], dict[str, Any]]  # its names, and its options for `argparse`


def _takes(*names: str, **settings: Any) -> Argument:
    return names, settings


def _flag(name: str, help: str) -> Argument:
    return _takes(name, help=help, action="store_true")


class Command(NamedTuple):
    """A command: the module with its function, its summary and arguments, what ends its help.

    Of a list of arguments only one may be given.
    """

    module: str
    summary: str
    arguments: tuple[Argument | list[Argument], ...]
    more: str | None = None


_TRAIN_MORE = """\
included run files:
  best tree                          four label trees, the default; one tree
  network                            a network, for GPUs, dense features, many labels a row
  sampled                            a network of a thousand labels and more, on CPUs
  adaptive-sgd elastic static        replicas that are merged, for unequal and for equal workers
  adaptive-hogbatch adaptive-outer adaptive-sgd-paper adaptive-sgd-pool adasum
  adasum-gradients asynchronous central cpu-gpu-hogbatch crossbow elastic-mean elastic-outer
  hogbatch hogbatch-dense hogwild minibatch mirrored slide ssp
                                     other algorithms, and variants of these

examples:
  daskxml train train.txt.gz --test test.txt.gz --out runs/first
  daskxml train network rows/*.parquet --set data.validation=0.1 --set strategy.lr=0.02
  daskxml train my.toml --scheduler tcp://host:8786 --out /shared/run
  daskxml train --resume runs/first
"""

_BATCH_COST = "FIXED_S,PER_ROW_S,PER_NONZERO_S"
_RUN_FILE = "run file or the name of an included one"
_JSON = _flag("--json", "print one JSON object")
_MODEL = _takes("model", metavar="DIR", help="directory of a run or a model")
_DATA = _takes("data", nargs="+", metavar="DATA", help="rows as text, plain or gzipped")
_RUNS = _takes("runs", nargs="+", metavar="DIR", help="directory of a run, or a folder of several")
_RUN = _takes("run", metavar="RUN", help="its name in `daskxml runs`, or its directory")
_SCHEDULER = _takes("--scheduler", required=True, metavar="ADDRESS", help="tcp://HOST:PORT")
_TRAIN = _takes("--train", nargs="+", metavar="FILE", help="training rows")
_TEST = _takes("--test", nargs="+", metavar="FILE", help="test rows")
_SET = _takes(
    "--set", action="append", default=[], dest="overrides", metavar="SECTION.KEY=VALUE",
    help="override a value of the run file; may be repeated",
)  # fmt: skip

COMMANDS = {
    "train": Command("train", "train a model", (
        _takes("rows", nargs="*", metavar="FILE", help="training rows, as of --train; before them "
               f"perhaps a {_RUN_FILE} (default: best)"),
        _TRAIN, _TEST,
        [_takes("--scheduler", metavar="ADDRESS", help="a running scheduler, tcp://HOST:PORT"),
         _takes("--workers", type=count, metavar="N",
                help="number of local worker processes, without pools; 0: train in this process")],
        _SET,
        _takes("--out", metavar="DIR", help="directory of the run (default: a new one in runs/)"),
        _takes("--resume", metavar="DIR", help="continue from this run's last checkpoint"),
        _takes("--device", choices=("auto", "cpu", "cuda"),
               help="device of the workers (default: auto, a GPU where there is one)"),
        _flag("--detach", "leave the run to the scheduler once it has started; see attach, runs "
              "and stop"),
    ), _TRAIN_MORE),
    "runs": Command("train", "list the runs of a scheduler", (
        _SCHEDULER, _flag("--json", "print one JSON object a line"),
    )),
    "attach": Command("train", "follow a run of a scheduler, like train", (_RUN, _SCHEDULER)),
    "stop": Command("train", "end a run of a scheduler, with a checkpoint", (
        _RUN, _SCHEDULER, _flag("--forget", "then forget the run and its model"),
    )),
    "simulate": Command("train", "train on simulated workers, in virtual time", (
        _takes("config", metavar="RUN.toml", nargs="?", default="best",
               help=f"{_RUN_FILE} (default: best)"),
        _takes("--speeds", type=speeds, required=True, metavar="S,S,...",
               help="a worker for each, as 1,0.92,0.84,0.76, or with names: gpu=1,cpu=1"),
        _takes("--pool", action="append", type=pool, default=[], dest="pools",
               metavar="NAME=THREADS",
               help="this worker is a pool of threads that update one model; may be repeated"),
        _takes("--out", required=True, metavar="DIR", help="where the run is written"),
        _TRAIN, _TEST, _SET,
        _takes("--cost", type=three_numbers, metavar=_BATCH_COST,
               help="seconds of a batch at speed 1 (default: estimate for a V100)"),
        [_takes("--pool-cost", type=three_numbers, metavar=_BATCH_COST,
                help="seconds of a pool's batch at speed 1 (default: as for other workers)"),
         _takes("--pool-ratio", type=number, metavar="RATIO",
                help="time of a pool's epoch relative to a worker's with its largest batches, both "
                "at speed 1 (56 CPU threads and a V100: 236 to 317)")],
        _takes("--jitter", type=number, metavar="SIGMA",
               help="spread of batch times (default: 0.05)"),
        _takes("--bandwidth", type=bandwidth, metavar="SIZE/s",
               help="between workers (default: 25GB/s, one NVLink)"),
        _takes("--latency", type=number, metavar="S", help="between workers (default: 1e-5)"),
        _takes("--message", type=number, metavar="S",
               help="to and from the scheduler (default: 1e-4)"),
    )),
    "evaluate": Command("data", "score a trained model on labelled rows", (
        _MODEL, _DATA,
        _takes("--k", type=ranks, default=(1, 3, 5), help="ranks (default: 1,3,5)"),
        _JSON,
    )),
    "predict": Command("data", "write the best labels of every row", (
        _MODEL, _DATA,
        _takes("--top-k", type=positive, metavar="K", help="labels a row (default: 5)"),
        _flag("--choose", "only labels above their thresholds (see calibrate), at most --top-k a "
              "row if given"),
        _takes("--measure", choices=("macro-F1", "macro-recall", "PSP", "coverage"),
               help="--top-k labels a row, chosen for all rows together so that this is highest"),
        _takes("--out", required=True, metavar="FILE",
               help=".npz (scores as SciPy CSR), .csv, .jsonl or .parquet by its suffix, with "
               "names of labels if the model has them; an existing file is replaced; - is JSON "
               "lines on stdout"),
        _takes("--scheduler", metavar="ADDRESS", help="predict on a cluster, tcp://HOST:PORT"),
    )),
    "mix": Command("data", "make one model of several, with weights chosen on held-out rows", (
        _takes("models", nargs="+", metavar="DIR",
               help="directories of two or more runs or models"),
        _takes("--out", metavar="DIR",
               help="where the mixture is written (default: a new directory in runs/)"),
        _takes("--valid", nargs="+", metavar="FILE",
               help="rows on which the weights are chosen (default: those held out by all runs "
               "with data.validation)"),
        _takes("--weights", type=numbers, metavar="W,W", help="one for each model; their sum is 1"),
    )),
    "serve": Command("serve", "serve predictions over HTTP", (
        _MODEL,
        _takes("--host", default="127.0.0.1", help="0.0.0.0: also for other machines"),
        _takes("--port", type=port, default=8000, help="0: any free port"),
        # Without defaults: `daskxml.cli.asgi.ServingSettings` has those.
        _takes("--threads", type=positive, metavar="N",
               help="batches at a time (default: all cores)"),
        _takes("--batch-rows", type=positive, metavar="N", help="largest batch, in rows"),
        _takes("--request-rows", type=positive, metavar="N", help="largest request, in rows"),
        _takes("--request-bytes", type=positive, metavar="N", help="largest request"),
        _takes("--request-seconds", type=number, dest="request_s", metavar="S",
               help="time limit to receive a request, and for its response to be read "
               "(default: 30)"),
        _takes("--watch", type=number, dest="watch_s", metavar="S",
               help="interval of looking for a newer model in DIR (default: never)"),
    )),
    "calibrate": Command("data", "calibrate a model's probabilities and choose label thresholds", (
        _MODEL,
        _takes("rows", nargs="*", metavar="FILE", help="rows that the model was not trained on "
               "(default: those held out by data.validation)"),
        _takes("--out", metavar="DIR",
               help="directory of the calibrated model (default: replaces the model)"),
        _takes("--k", type=positive, metavar="K",
               help="best labels of a row to use (default: 20, more if rows have many)"),
        _takes("--f1", choices=("macro", "micro"), default="macro",
               help="macro: a threshold for each label; micro: one for all (default: macro)"),
        _JSON,
    )),
    "compress": Command("data", "write a smaller model that ranks nearly the same labels", (
        _MODEL,
        _takes("--out", required=True, metavar="DIR", help="where the smaller model is written"),
        _takes("rows", nargs="*", metavar="FILE", help="rows on which both models are scored"),
        _takes("--bits", type=int, choices=(8, 16), default=16,
               help="of a weight in a network's first and output layer (default: 16)"),
        _takes("--drop", type=level, metavar="SHARE",
               help="the smallest weights of label trees are dropped, with this share of the sum "
               "of all squares (default: 0.065)"),
    )),
    "extend": Command("data", "add new labels to a model of label trees", (
        _MODEL,
        _takes("data", nargs="+", metavar="FILE", help="rows of new labels, and perhaps others"),
        _takes("--label-names", metavar="FILE", help="a name of a new label on each line"),
        _takes("--out", required=True, metavar="DIR",
               help="where the model of all labels is written"),
    )),
    "report": Command("reports", "compare runs: time to a level of a metric, and a page", (
        _RUNS,
        _takes("--out", metavar="DIR",
               help="where the report is written (default: report/ in the run's directory, or "
               "beside the first of several); files of an earlier report are replaced"),
        _takes("--metric", metavar="NAME", help="metric to compare (default: the target_metric)"),
        _takes("--at", type=level, metavar="VALUE",
               help="level of the metric (default: 95%% of the best of all runs)"),
        _flag("--json", "print one JSON object, and write nothing"),
    )),
    "verify": Command(
        "reports", "recompute the decisions and counts of runs from their histories", (
            _RUNS, _flag("--json", "print one JSON object a line, with all disagreements"),
            _takes("--data", nargs="+", default=(), metavar="FILE",
                   help="test rows of the runs: recompute the metrics of their models, too"),
        ),
    ),
    "inspect": Command("inspect", "describe data files and their problems, or the installation", (
        _takes("data", nargs="*", metavar="FILE",
               help="rows as text, Parquet, Arrow, JSON lines, CSV or SciPy npz; without a file, "
               "examine the installation"),
        _takes("--feature-names", metavar="FILE",
               help="a name of a feature on each line, for tables that contain names"),
        _takes("--label-names", metavar="FILE",
               help="a name of a label on each line, for tables that contain names"),
        _JSON,
    )),
    "bench": Command("bench", "run a suite: run files times data sets, one table", (
        _takes("suite", metavar="SUITE", help="TOML file, or the name of an included suite"),
        _takes("--out", metavar="DIR", help="output folder, where an interrupted bench continues "
               "(default: runs/bench-SUITE)"),
        _takes("--data", metavar="FOLDER", help="folder with the files of real data sets"),
    )),
}  # fmt: skip
