"""Everything that may be wrong with what a user gives: one line, exit status 2, nothing written.

All commands run as processes, several at a time, against one scheduler; then each is checked. One
of each kind is started anew, the others are forked (see `commands`).
"""

import hashlib
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from daskxml.core.hardware import find_gpus
from daskxml.transport.ucx import has_ucx
from harness.bad_files import DAMAGED, FILES
from harness.clusters import local_cluster
from harness.commands import Done, run_all

NUMBERS = itertools.count()


def train(rows: str, *options: str, run: str = "run.toml", out: str = "") -> tuple[str, ...]:
    return ("train", run, "--train", rows, "--out", out or f"new-{next(NUMBERS)}", *options)


def setting(value: str) -> tuple[str, ...]:
    return train("good.txt", "--set", value)


def here(rows: str, *options: str) -> tuple[str, ...]:
    """On a local cluster."""
    return train(rows, *options, HERE)


HERE = "here"
RESUME = ("--set", "training.megabatches=4")
# Name: arguments, and what the line on stderr must hold. The first one waits for ten seconds.
CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "nobody answers": ((*train("good.txt"), "--scheduler", "tcp://127.0.0.1:9"), "no scheduler"),
    "malformed row": (train("malformed.txt"), "malformed.txt:6: malformed token '3=1'; expected"),
    "label out of range": (train("label-range.txt"), "txt:6: label id 99 in '99' is out of range"),
    "header has more rows": (train("more-rows.txt"), "says 90 rows but the file has 60; the file"),
    "header has fewer rows": (train("fewer-rows.txt"), "says 9 rows but the file has 60; correct"),
    "cut gzip": (train("cut.txt.gz"), "the gzip stream ends early; the file is truncated"),
    "damaged gzip": (train("flipped.txt.gz"), "flipped.txt.gz"),
    "not gzip": (train("plain.txt.gz"), "plain.txt.gz"),
    "empty": (train("empty.txt"), "empty.txt: the file is empty; give one"),
    "zero rows": (train("zero.txt"), "zero.txt: no rows in the file; give one"),
    "picture": (train("picture.txt"), "picture.txt: not text: it holds NUL bytes; give plain"),
    "table": (train("table.txt"), "table.txt:1: malformed labels 'label;a;b'; expected"),
    "NaN": (train("nan.txt"), "nan.txt:6: the value in '3:nan' is NaN or infinite; remove"),
    "overflow": (train("overflow.txt"), "overflow.txt:6: the value in '3:1e99' does not fit"),
    "signs as labels": (train("minus.txt"), "minus.txt:1: label '-1' is not a non-negative"),
    "no labels": (train("no-labels.txt"), "no-labels.txt: no row has a label, so there is nothing"),
    "null in a table": (train("null.jsonl"), "null.jsonl:2: 'labels' is null, but other rows have"),
    "table without labels": (train("no-labels.csv"), "csv:1: no column 'labels'; it has 'tags'"),
    "cut Parquet": (train("cut.parquet"), "cut.parquet: not a whole table ("),
    "enormous header": (train("enormous.txt"), "2,000,000,000 labels are too many for"),
    "enormous header of trees": (train("enormous.txt", run="tree"), "are too many for the free"),
    "missing": (train("absent.txt"), "absent.txt: no such file; check the path"),
    "glob of nothing": (train("absent*.txt"), "absent*.txt: no file"),
    "directory as rows": (train("folder"), "folder: is a directory; name its files"),
    "unknown protocol": (train("nosuch://x/y.txt"), "nosuch://x/y.txt"),
    "test has more features": (train("good.txt", "--test", "wide.txt"), "txt:1: its header has 25"),
    "test row has more features": (train("good.txt", "--test", "wide.svm"), "wide.svm:1: feature"),
    "wrong key": (train("good.txt", run="key.toml"), "key.toml:4: [strategy] unknown key"),
    "wrong value": (train("good.txt", run="value.toml"), "value.toml:6: [strategy] lr = 'fast'"),
    "wrong section": (train("good.txt", run="section.toml"), "section.toml:7: [trainig] is not a"),
    "no TOML": (train("good.txt", run="syntax.toml"), "syntax.toml:1: not valid TOML"),
    "no end": (train("good.txt", run="endless.toml"), "endless.toml:8: [training] megabatches"),
    "run file is a directory": (train("good.txt", run="folder"), "folder: a directory, not a run"),
    "wrong section set": (setting("strtegy.lr=1"), "--set strtegy.lr: [strtegy] is not a section"),
    "wrong setting": (setting("strategy.lr=fast"), "--set strategy.lr: lr = 'fast': must be a num"),
    "target without test": (setting("training.target=0.5"), "training.target needs test rows"),
    "does not fit": (setting("model.hidden=[1000000000]"), "] fits, or label trees, the run file"),
    "diverges": (setting("strategy.lr=1e30"), "not finite any more"),
    "out holds a run": (train("good.txt", out="run"), "run: holds a run already; choose another"),
    "out is a file": (train("good.txt", out="file"), "file is a file; choose another --out"),
    "out under a file": (train("good.txt", out="file/x"), "file is a file; choose another --out"),
    "short checkpoint": (("train", "--resume", "short-checkpoint", *RESUME), "000003.safetensors"),
    "flipped checkpoint": (("train", "--resume", "flipped-checkpoint", *RESUME), "damaged"),
    "no checkpoint": (("train", "--resume", "no-checkpoint", *RESUME), "no checkpoint to resume"),
    "no run file": (("train", "--resume", "no-run-file", *RESUME), "no run to resume here"),
    "damaged run file": (("train", "--resume", "bad-run-file", *RESUME), "toml:5: not valid TOML"),
    "resume of another model": (
        ("train", "--resume", "reshaped", "--set", "model.hidden=[5]", *RESUME),
        "model.hidden: the run began with [4], which cannot become [5]: leave [model] as it was",
    ),
    "resume with another strategy": (
        ("train", "--resume", "reshaped", "--set", "strategy.name=elastic", *RESUME),
        "strategy.name=elastic: a run goes on as it began; without --resume begin one",
    ),
    "resume with the best model": (
        ("train", "--resume", "reshaped", "--set", "training.keep_best=true", *RESUME),
        "training.keep_best: the best model by training.target_metric was not kept when the",
    ),
    "resume on other rows": (
        ("train", "--resume", "other-rows", "--set", "data.validation=0.1", *RESUME),
        "other-rows: the training rows are not those that the run began with: give the same files",
    ),
    "resume of a folder": (("train", "--resume", "folder"), "folder: no run to resume here"),
    "resume elsewhere": (("train", "--resume", "run", "--out", "x"), "name two directories"),
    "short model": (("evaluate", "short", "good.txt"), "short/model.safetensors: damaged"),
    "flipped model": (("evaluate", "flipped", "good.txt"), "flipped/model.safetensors: damaged"),
    "edited model": (("evaluate", "edited", "good.txt"), "edited/model.json: damaged or edited"),
    "later model": (("evaluate", "later", "good.txt"), "later/model.json: is daskxml-model 2, but"),
    "undescribed model": (("predict", "undescribed", "good.txt", "--out", "x"), "model.json: cann"),
    "half described": (("evaluate", "half-described", "good.txt"), "model.json: damaged"),
    "unweighted model": (("evaluate", "unweighted", "good.txt"), "model.safetensors: cannot be"),
    "no model": (("evaluate", "folder", "good.txt"), "folder: holds no model"),
    "model is a file": (("evaluate", "file", "good.txt"), "file: a file, not a directory; give"),
    "scores over a folder": (("predict", "run", "good.txt", "--out", "folder"), "folder: cannot"),
    "inspect NaN": (("inspect", "nan.txt"), "nan.txt:6: the value in '3:nan' is NaN"),
    "missing here": (here("absent.txt"), "absent.txt: no such file; check the path"),
    "no address": ((*train("good.txt"), "--scheduler", "nonsense"), "nonsense: not a scheduler's"),
    "no port": ((*train("good.txt"), "--scheduler", "tcp://a:b"), "tcp://a:b: not a scheduler's"),
    "a tcp scheduler": (train("good.txt", "--set", "cluster.protocol=ucx"), "speaks tcp; start it"),
    "detached alone": (here("good.txt", "--detach"), "a detached run needs --scheduler: a local"),
    "too many threads": (setting("cluster.threads=4000"), "use 4000 threads on"),
    "no such run": (("attach", "nobody"), "nobody: no such run on this scheduler; take one of"),
    "stop no such run": (("stop", "nobody"), "nobody: no such run on this scheduler"),
    "no protocol": ((*train("good.txt"), "--scheduler", "foo://x:1"), "foo://x:1: not a sched"),
}  # fmt: skip
if not find_gpus():
    problem = "sees no GPU, and [cluster] device = 'cuda' needs one"
    CASES["no GPU"] = train("good.txt", "--device", "cuda"), problem
    CASES["no GPU here"] = here("good.txt", "--device", "cuda"), "no GPU was found here (nvidia-smi"
if not has_ucx():
    CASES["no UCX"] = (
        here("good.txt", "--set", "cluster.protocol=ucx"),
        "UCX is not installed here: pip install",
    )
    CASES["no UCX to call"] = (*train("good.txt"), "--scheduler", "ucx://h:1"), "ucx://h:1: UCX is"
# These look odd and are fine.
FINE: dict[str, tuple[str, ...]] = {
    "one row": train("one-row.txt"),
    "one label": train("one-label.txt"),
    "k beyond the labels": train("good.txt", "--test", "good.txt", "--set", "evaluation.k=[1,100]"),
    "top-k beyond the labels": ("predict", "run", "good.txt", "--top-k", "99", "--out", "new.npz"),
    "evaluate no labels": ("evaluate", "run", "no-labels.txt"),
}
# Processes of their own from the first line on.
STARTED = {"malformed row", "flipped model"}


@dataclass
class World:
    """A folder with good and bad files and runs, and a scheduler."""

    folder: Path
    address: str

    def do(self, cases: dict[str, tuple[str, ...]]) -> dict[str, Done]:
        """Return what comes of commands in the folder."""
        given = {name: self._given(arguments) for name, arguments in cases.items()}
        return run_all(given, self.folder, STARTED)

    def _given(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        if HERE in arguments:
            return tuple(argument for argument in arguments if argument != HERE)
        if arguments[0] in ("train", "attach", "stop") and "--scheduler" not in arguments:
            return (*arguments, "--scheduler", self.address)
        return arguments


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "folder").mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    with local_cluster(1, tmp_path_factory.mktemp("dask")) as cluster:
        made = World(folder, cluster.scheduler_address)
        done = made.do({"good": train("good.txt", out="run")})["good"]
        assert done.returncode == 0, done.stderr
        for name, damage in DAMAGED.items():
            shutil.copytree(folder / "run", folder / name)
            damage(folder / name)
        yield made


@pytest.fixture(scope="module")
def before(world: World) -> dict[str, str]:
    """All files before the first case."""
    return contents(world.folder)


@pytest.fixture(scope="module")
def failures(world: World, before: object) -> dict[str, Done]:
    """What came of every case."""
    return world.do({name: arguments for name, (arguments, _) in CASES.items()})


def test_nothing_is_written(
    world: World, before: dict[str, str], failures: dict[str, Done]
) -> None:
    assert contents(world.folder) == before
    assert {path.name for path in world.folder.iterdir() if path.is_dir()} == {
        "folder",
        "run",
        *DAMAGED,
    }


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_what_where_and_what_to_do(
    world: World, failures: dict[str, Done], name: str
) -> None:
    done = failures[name]
    assert CASES[name][1] in done.stderr
    assert done.returncode == 2
    assert done.stderr.startswith("daskxml: error: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr.replace(str(world.folder), "")) < 400


@pytest.fixture(scope="module")
def successes(world: World) -> dict[str, Done]:
    """What came of the odd cases that are fine; the scheduler has outlived the bad ones."""
    return world.do(FINE)


@pytest.mark.parametrize("name", FINE)
def test_what_looks_odd_and_is_fine(
    failures: object, successes: dict[str, Done], name: str
) -> None:
    assert successes[name].stderr == ""
    assert successes[name].returncode == 0
