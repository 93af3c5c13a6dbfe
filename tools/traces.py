"""Write down what an installed daskxml does, so that two versions of it can be compared.

Whoever moves or renames things, and means to change no behaviour, proves it with this script::

    OLD/.venv/bin/python tools/traces.py traces/old --keep traces/kept --old traces/kept
    NEW/.venv/bin/python tools/traces.py traces/new --old traces/kept
    diff -r traces/old traces/new

It goes through doors that stay: the command, the names in ``daskxml.__all__``, the files that a
run writes. All sections take some six minutes on two cores; ``--only simulate,cli`` does some:

========  ======================================================================================
simulate  every run file by the command: histories byte by byte, hashes of all tensors, reports
variants  every run file with `OPTIONS`, and where workers are lost and come
real      every run file on a Dask cluster of one worker, some on two, and simulated, then resumed
messages  every key of every section with wrong values; rows that cannot be read
cli       a transcript of the command: texts, errors, exit statuses
public    names, signatures and members
old       what this version makes of the runs that another one has kept
========  ======================================================================================

``--keep`` keeps the runs of ``real`` as they are before they are resumed. Paths, addresses and what
a clock decides are masked; virtual times are not. Both versions need one machine and one set of
packages.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import gzip
import hashlib
import importlib.util
import inspect
import json
import math
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import typing
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.data.synthetic import SyntheticSpec, write_xml

COMMAND = str(Path(sys.executable).with_name("daskxml"))
SOURCE = Path(getattr(importlib.util.find_spec("daskxml"), "origin", "")).parents[1]
# Sets of names have one order; a port that is taken is nobody's fault.
ENVIRONMENT = {"COLUMNS": "200", "MPLBACKEND": "agg", "TZ": "UTC", "PYTHONHASHSEED": "0",
               "PYTHONWARNINGS": "ignore:Port"}  # fmt: skip
SPEEDS, POOLS = {"a": 1.0, "b": 0.7, "c": 0.4}, {"c": 2}
SMALL = ("model.hidden=[8]", "strategy.megabatch_batches=6", "training.megabatches=3",
         "evaluation.every=2", "checkpoint.every=2", "cluster.threads=1")  # fmt: skip
COST = {"fixed_s": 1e-3, "per_row_s": 1e-4}  # such a mega-batch takes about 30 ms
NETWORKS = ({"machine_workers": 2}, {"bandwidth_bytes_s": 1e6, "message_s": 1e-3})
KINDS = {"plain": ["--name a"], "pool": ["--name a --resources cpu-pool=1"],
         "pair": ["--name a", "--name b"], "simulated": []}  # fmt: skip
PAIRED = ("adasum", "adasum-gradients", "crossbow", "mirrored")  # repeat themselves on two
MASKS = {
    r"\b(tcp|http)://127[\d.]+:\d+": r"\1://ADDRESS", r" at 0x[0-9a-f]+": "",
    r"20\d\d-\d\d-\d\d([T ][\d:]+(\+[\d:]+)?)?": "DATE", r"(?<=which has )[\d.]+": "MEMORY",
    r"\b[0-9a-f]{40}\b": "COMMIT",
}  # fmt: skip
CLOCKS = {
    r"[\d,.]+(?= rows/s| s\b)": "N", r"\b[0-9a-f]{8}\b": "RUN", r" {2,}": " ",
    r'("\w+_s"): [\d.e-]+': r"\1: N", r"(?m)^.*; Python 3.*$": "MACHINE",
    r"(?m)[\d,.]+(?= MiB$| \| 1 \|$)": "N", r"\bnew-\w{5}": "NEW",
    r"(?m)^(starting|loading|training|merging|evaluating)\n": "",
}  # fmt: skip

OPTIONS = """strategy.lr=0.5 run.seed=7 | optimizer.name=adam strategy.lr=0.01 |
optimizer.name=lamb schedule.warmup_epochs=0.2 | optimizer.name=momentum optimizer.on_merge=average
| optimizer.clip_norm=0.5 | optimizer.name=nesterov optimizer.on_merge=reset | optimizer.name=adam
optimizer.weight_decay=0.01 optimizer.output=sgd optimizer.output_lr=0.5 | schedule.name=cosine
training.epochs=3 | schedule.name=linear schedule.final=0.1 training.epochs=2 |
schedule.name=inverse schedule.decay=0.5 | sampling.method=random sampling.active=0.2 |
sampling.method=simhash sampling.active=0.2 sampling.rebuild_every=100 | sampling.method=simhash
sampling.active=10 optimizer.name=adam | sampling.method=dwta sampling.active=0.2 sampling.k=2 |
combine.rule=mean | combine.rule=sum | combine.rule=adasum | combine.rule=adasum
combine.order=linear | combine.rule=adasum combine.transfer=float16 | combine.transfer=bfloat16 |
combine.outer=nesterov combine.outer_lr=0.5 | combine.overlap=true | combine.overlap=true
combine.transfer=bfloat16 optimizer.name=adam optimizer.on_merge=reset | model.loss=sigmoid
model.output_bias=-3.0 | model.hidden=[] | model.hidden=[12,6] model.dropout=0.3
model.activation=sigmoid model.feature_dropout=0.1 | data.validation=0.2 | data.residency=shard
data.partitions=5 | data.normalize=none training.epochs=0.5 | evaluation.training_loss=true
evaluation.k=[2,4] | training.logits_budget=4KiB | training.target=0.05 | training.minutes=0.001 |
strategy.rule=paper strategy.norm=literal strategy.renormalize=false | strategy.momentum=0.0
strategy.perturbation_threshold=1e9 | strategy.batch_initial=16 strategy.batch_min=4
strategy.beta=4.0 | strategy.weighting=rows | strategy.merge=step | strategy.local_steps=2 |
strategy.restart_every=1 | strategy.staleness=0 | strategy.lr_rows=batch | strategy.per_thread=true
| cluster.device=cuda"""
SIMULATED = """adaptive-sgd --compare elastic static --set combine.overlap=true --speeds 1,0.5 |
elastic --compare elastic --cost 1e-3,1e-4,1e-6 --jitter 0.2 --bandwidth 10MB/s --latency 1e-3
--message 2e-3 --speeds x=1,y=0.5 | static --calibrate adaptive-sgd | adaptive-sgd-pool --pool x=2
--pool-cost 1e-3,1e-2,0 --jitter 0 --speeds x=1,y=0.5"""
# By what they begin with, the ends of commands; every NEW is a folder of its own.
COMMANDS = {"": """ | --version | trian | train | runs | attach | stop | simulate | evaluate |
predict | report | inspect | bench | train best | train picture.txt
--train good.txt | train quikstart --train good.txt | train nothing-like-it --train good.txt | runs
--scheduler nonsense | train folder --train good.txt | train --resume absent | train --resume
folder | attach nobody | train --resume no-run-file | train --resume bad-run-file --train good.txt
| stop nobody | train --resume run --train good.txt --out elsewhere | attach nobody --scheduler
nonsense | train --resume no-checkpoint --train good.txt | train --resume locked --train good.txt |
stop nobody --scheduler foo://x:1 | simulate run.toml --speeds 1 --train good.txt --out run |
simulate run.toml --speeds 1 --out NEW | demo --workers 0 | doctor --jsn""",
"train run.toml --train good.txt": """--out run | --out file | --out file/x | --log paper --out NEW
| --workers 0 | --workers 2 --scheduler tcp://x:1 | --device gpu | --protocol udp | --detach |
--scheduler nonsense --out NEW | --scheduler foo://x:1 --out NEW | --scheduler ucx://h:1 --out NEW
| --scheduler tcp://127.0.0.1:9 --out NEW | --device cuda --out NEW | --protocol ucx --out NEW |
--set cluster.threads=4000 --out NEW | --detach --log tensorboard""",
"simulate --train good.txt --out NEW": """run.toml | run.toml --calibrate /nowhere | elastic
--calibrate folder | absent.toml --speeds 1 | key.toml --speeds 1 | section.toml --speeds 1 |
syntax.toml --speeds 1 | endless.toml --speeds 1 | outside.toml --speeds 1 | mirrored --speeds 1,1
--set combine.overlap=true | mirrored --speeds a=1,b=1 --pool b=2 | elastic --speeds 1,1 --set
combine.rule=sum | network --speeds 1,1 --set training.epochs=0 --set training.megabatches=2""",
"simulate run.toml --train good.txt --out NEW --speeds": """1,x | 1,0 | a=1,a=2 | a=1 --pool b=2 |
a=1 --pool 2 | a=1 --pool a=0 | 1 --cost 1,2 | 1 --cost 0,0,0 | 1 --cost 1,x,1 | 1 --jitter -1 |
a=1 --pool a=1 --pool-cost 1,1,1 --pool-ratio 2 | 1 --jitter 5 | 1 --bandwidth fast | 1 --bandwidth
0B/s | 1 --latency x | 1 --message -1 | 1 --log paper | 1 --compare quikstart | 1 --set strategy.lr
| 1 --set lr=1 | 1 --set strategy.lr=fast | 1 --set strategy.lrr=1 | 1 --set strtegy.lr=1 | 1 --set
strategy.name=elastik | 1 --set training.target=0.5 | 1 --set strategy.lr=1e30 | 1 --test good.txt
| 1 --test absent.txt | 1 --test wide.txt | 1 --test wide.svm | 1 --test malformed.txt | 1 --test
good.txt --set evaluation.k=[1,100]""",
"evaluate": """run | run good.txt | run good.txt good.txt --json | run good.txt --k 2,1 --json |
run good.txt --k 1,b | run good.txt --k 0 | run unlabelled.txt | run absent.txt | run wide.txt |
run wide.svm | run cut.txt.gz | absent good.txt | folder good.txt | file good.txt | short good.txt
| flipped good.txt | edited good.txt | later good.txt | half good.txt | unweighted good.txt |
undescribed good.txt""",
"predict run good.txt": """ | --out folder | --out no/x.npz | --top-k 0 --out x.npz | --top-k 99
--out scores.npz""",
"report": """/nowhere | folder | run --metric P@2 | run --at 2 | run --out file | run torn
--out report""",
"bench": """smokey | file | suite.toml --out bench |
bad-suite.toml --out NEW | quality --out NEW"""}  # fmt: skip
SCHEDULED = """malformed.txt | wide.svm | good.txt --set strategy.lr=1e30 | good.txt --protocol ucx
| good.txt --set model.hidden=[1000000000] | good.txt --device cuda | good.txt --set
cluster.threads=4000 | good.txt --test wide.svm | good.txt --resume reshaped --set model.hidden=[5]
| good.txt --resume other-rows --set data.validation=0.1 | good.txt --resume flipped-checkpoint |
good.txt --resume short-checkpoint | good.txt --resume run --set optimizer.name=adam | good.txt
--resume later --set strategy.name=mirrored"""
VALUES: tuple[Any, ...] = (-1, 0, 3, 0.5, 1e30, math.nan, "x", "", True, [], [-0.5], ["x"])
RUN_FILE = ("[model]\nhidden = [4]\n[strategy]\nbatch_max = 8\nmegabatch_batches = 4\nlr = 0.5\n"
            "[training]\nmegabatches = 3\n[cluster]\nthreads = 1\n")  # fmt: skip
SUITE = """[suite]\ntitle = "two cells"\n[data.tiny]\nrows = 300\ntest_rows = 50\nfeatures = 40
labels = 9\n[[matrix]]\nrun = ["best"]\ndata = ["tiny"]\nworkers = [2]
executors = ["simulate"]
"""
GOOD = ["60 20 7", *(f"{i % 5},{(i + 1) % 7} {i % 9}:1 {9 + i % 11}:0.5" for i in range(60)), ""]
BAD_ROWS = {"malformed": "1 3=1", "label": "1,99 3:1", "feature": "1 44:1", "nan": "1 3:nan",
    "inf": "1 3:-inf", "overflow": "1 3:1e99", "minus": "-1 3:1", "letters": "a 3:1", "blank": "",
    "no-value": "1 3:", "no-colon": "1 3", "fraction": "1.5 3:1", "twice": "1 3:1 3:2",
    "unordered": "1 5:1 3:2", "spaces": "1  3:1  4:1 ", "tab": "1\t3:1", "comma": "1,,2 3:1",
    "minus-id": "1 -3:1", "hex": "1 0x3:1", "underscore": "1 3:1_0", "huge-id": "1 99999999999:1",
    "no-features": "1", "no-labels": " 3:1", "return": "1 3:1\r", "colon-first": "1 :1",
    "semicolon": "1;2 3:1", "plus": "+1 +3:+1", "comment": "1 3:1 # said"}  # fmt: skip
# A damaged run's name, the file, what is replaced in it by what; None for all: it is removed.
DAMAGED = (
    ("short", "model.safetensors", rb".{100}$", b""), ("torn", "history.jsonl", rb".{40}$", b""),
    ("flipped", "model.safetensors", rb".(.{8})$", rb"#\1"), ("half", "model.json", rb".{9}$", b""),
    ("edited", "model.json", b'rows": 60', b'rows": 61'), ("undescribed", "model.json", b"", None),
    ("later", "model.json", b'version": 1', b'version": 2'), ("no-run-file", "run.toml", b"", None),
    ("unweighted", "model.safetensors", b"", None), ("reshaped", "run.toml", b"", b""),
    ("short-checkpoint", "checkpoints/000003.safetensors", rb".{100}$", b""),
    ("flipped-checkpoint", "checkpoints/000003.safetensors", rb".(.{8})$", rb"#\1"),
    ("no-checkpoint", "checkpoints/000003.safetensors", b"", None),
    ("bad-run-file", "run.toml", rb"\[data\]", b"[data"),
    ("unmeasured", "history.jsonl", rb'"P@1.*?}', b"}"), ("locked", "run.toml", b"", b""),
    ("other-rows", "run.toml", b"", b""),
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a section works and writes, and where runs lie that are kept."""

    out: Path
    work: Path
    keep: Path | None
    old: Path | None

    def save(self, name: str, text: str, *, is_timed: bool = False) -> None:
        """Write a file of this section, masked."""
        text = text.replace(str(self.work), "WORK").replace(str(SOURCE), "SOURCE")
        for pattern, mask in (MASKS | (CLOCKS if is_timed else {})).items():
            text = re.sub(pattern, mask, text)
        (self.out / name).parent.mkdir(parents=True, exist_ok=True)
        (self.out / name).write_text(text, encoding="utf-8")

    def write_rows(self, rows: int, features: int, labels: int) -> None:
        """Generate training and test rows."""
        size = {"rows": rows, "test_rows": rows // 6, "features": features, "labels": labels}
        for part in ("train", "test"):
            write_xml(self.work / f"{part}.txt", SyntheticSpec(**size, seed=3), part)

    @property
    def rows(self) -> dict[str, Path]:
        """The files of rows, by what they are for."""
        return {name: self.work / f"{name}.txt" for name in ("train", "test")}


def call(folder: Path, line: str) -> str:
    """Run the command in a folder; return what was called, what it said and its status."""
    where: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "timeout": 300}
    done = subprocess.run([COMMAND, *shlex.split(line)], capture_output=True, text=True, **where)
    told = "".join(f"! {line}\n" for line in done.stderr.splitlines())
    return f"$ daskxml {line}\n{done.stdout}{told}= {done.returncode}\n\n"


def call_all(folder: Path, lines: Iterable[str]) -> str:
    """Run commands two at a time; return what they said, in order."""
    given = [line.strip().replace("NEW", f"new-{digest(line.encode())[:5]}") for line in lines]
    with ThreadPoolExecutor(2) as pool:
        return "".join(pool.map(functools.partial(call, folder), given))


def spread(function: Callable[[str], str], names: Iterable[str]) -> dict[str, str]:
    """Call a function for each name, in two processes."""
    listed = list(names)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        return dict(zip(listed, pool.map(function, listed), strict=True))


def run_files() -> list[str]:
    """Return the names of the run files that come along, as the command lists them."""
    text = call(Path.cwd(), "train ?")
    return sorted(re.findall(r"[\w-]+", text.partition("valid are ")[2].partition(" (")[0]))


def has_pool(name: str) -> bool:
    """Whether a run file is for pools of threads."""
    return "hog" in name or "pool" in name


def settings(name: str, *more: str) -> list[str]:
    """Return the small settings of a run file; one of them has batches of one row."""
    rows = ["strategy.megabatch_batches=60"] if name == "hogwild" else []
    return [*SMALL, *rows, *more]


def digest(content: bytes) -> str:
    """Return enough of a hash."""
    return hashlib.sha256(content).hexdigest()[:20]


def timeless(value: Any) -> Any:
    """Mask what a clock decides in JSON: seconds, speeds, and where rows were cut into leases."""
    if isinstance(value, list):
        return [timeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: "N" if key.endswith("_s") else timeless(it) for key, it in value.items()}
    if isinstance(plain.get("leases"), list):
        spans = sorted(span for lease in plain["leases"] for span in lease)
        plain["leases"] = [spans[0][:3], spans[-1][3]]
    return plain | {key: "N" for key in ("dealt", "leased_rows") if key in plain}


def tensors(run: Path, *, is_timed: bool = False) -> str:
    """Return a line for every tensor of a run's model and checkpoints, and for what is beside."""
    from safetensors import deserialize, safe_open

    lines = []
    for path in sorted(run.rglob("*.safetensors")):
        place, tensors = path.relative_to(run), dict(deserialize(path.read_bytes()))
        with safe_open(path, "numpy") as file:
            beside = dict(file.metadata() or {})
        session = json.loads(beside.pop("session", "{}"))
        beside |= timeless(session) | {"daskxml.sha256": "MASKED"} if is_timed else session
        for name, it in tensors.items():
            beside[name] = f"{it['dtype']} {it['shape']} {digest(bytes(it['data']))}"
        lines += [f"{place} {name}: {json.dumps(beside[name])}\n" for name in sorted(beside)]
    return "".join(lines)


def config_of(run: Path) -> dict[str, dict[str, Any]]:
    """Return the resolved settings of a run, which has none if it could not begin."""
    path = run / "run.toml"
    return tomllib.loads(path.read_text("utf-8")) if path.exists() else {"strategy": {"name": ""}}


def describe(place: Place, run: Path, name: str, *, is_timed: bool = False) -> None:
    """Write down everything in a run's directory; of its environment, what is told."""
    files = sorted(path for path in run.rglob("*") if path.is_file())
    for path in files:
        if path.suffix in (".toml", ".json", ".jsonl", ".csv", ".html"):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".jsonl" and is_timed:
                rows = map(timeless, map(json.loads, text.splitlines()))
                text = "".join(f"{json.dumps(row)}\n" for row in rows)
            if path.name == "environment.json":
                text = re.sub(r'("[^"]*"|[\d.]+|null)(,?)$', r"_\2", text, flags=re.M)
            if path.name == "model.json":
                text = re.sub(r'^  "(sha256|daskxml_version)".*', "", text, flags=re.M)
            place.save(f"{name}/{path.relative_to(run)}", text)
    place.save(f"{name}/tensors.txt", tensors(run, is_timed=is_timed))
    listed = [
        (it.relative_to(run), it.suffix == ".png" and digest(it.read_bytes())) for it in files
    ]
    place.save(f"{name}/files.txt", "".join(f"{path} {picture}\n" for path, picture in listed))


def attempt(action: Callable[..., Any], *given: Any, **how: Any) -> str:
    """Return what an action returns as text, or its error, by its public kind."""
    import daskxml

    try:
        return str(action(*given, **how))
    except Exception as error:
        kinds = [it.__name__ for it in type(error).__mro__ if it.__name__ in daskxml.__all__]
        return f"{[*kinds, type(error).__name__][0]}: {' '.join(str(error).split())}"


def summary(run: Path) -> str:
    """Return the history of a simulated run, and a hash of its tensors."""
    if not (run / "history.jsonl").exists():
        return ""
    return f"{(run / 'history.jsonl').read_text('utf-8')}{digest(tensors(run).encode())}"


def execute(kind: str, config: Any, name: str, address: str = "", **how: Any) -> Any:
    """Train on a cluster, or in the simulator; return the run."""
    import daskxml

    if kind != "simulated":
        return daskxml.train(config, scheduler=address, **how)
    return daskxml.simulate(config, SPEEDS, pools=POOLS if has_pool(name) else None, **how)


def kinds_of(parameter: str) -> dict[str, Any]:
    """Return the classes that a parameter of `daskxml.simulate` takes, by their last fields."""
    import daskxml

    found, pending = {}, [typing.get_type_hints(daskxml.simulate)[parameter]]
    while pending:
        hint = pending.pop()
        pending += typing.get_args(hint)
        if fields := list(getattr(hint, "__dataclass_fields__", ())):
            found[fields[-1]] = hint
    return found


def simulate(place: Place) -> None:
    """Every run file by the command, and what report and compare make of the runs."""
    place.write_rows(2000, 500, 200)
    common = "--train train.txt --test test.txt --set model.hidden=[9] --set training.megabatches=5"
    lines, names = [], run_files()
    for name in names:
        workers = "a=1,b=0.7,c=0.4,d=0.9" + " --pool c=2 --pool-ratio 5" * has_pool(name)
        batches = 400 if name == "hogwild" else 8
        lines.append(f"simulate {name} --speeds {workers} --out {name} {common} --set "
                     f"strategy.megabatch_batches={batches} --set checkpoint.every=2")  # fmt: skip
    more = [f"simulate {end} --out NEW {common}" for end in SIMULATED.split("|")]
    reports = [f"report {' '.join(names)} --out report",
               f"report {' '.join(names)} --metric PSP@3 --at 0.1 --json"]  # fmt: skip
    place.save("stdout.txt", "".join(call_all(place.work, it) for it in (lines, more, reports)))
    for folder in (path for path in place.work.iterdir() if path.is_dir()):
        describe(place, folder, folder.name)


def variants(place: Place) -> None:
    """Run files with options, on workers that come and go, over other networks, and resumed."""
    place.write_rows(400, 120, 40)
    for name, text in spread(functools.partial(vary, place), run_files()).items():
        place.save(f"{name}.txt", text)


def vary(place: Place, name: str) -> str:
    """Return what comes of a run file with all options; with some if its strategy has another."""
    run, events = place.work / name, list[Any]()
    how = {"out": run, "overrides": settings(name), "on_event": events.append, **place.rows}
    lines = [attempt(execute, "simulated", name, name, **how), *map(str, events)]
    is_own = config_of(run)["strategy"]["name"] == name
    tried: list[tuple[str, dict[str, Any]]]
    tried = [(it, {}) for it in OPTIONS.split("|")[:: 1 if is_own else 3]]
    for extra in ("", "combine.overlap=true", "combine.rule=adasum combine.inside=mean"):
        tried += [(f"{extra} training.megabatches=5", how) for how in happenings()]
    for number, (options, how) in enumerate(tried):
        given, out = options.split(), run / str(number)
        how |= {"out": out, "overrides": settings(name, *given), **place.rows}
        done = attempt(execute, "simulated", name, name, **how)
        lines += [f"{number} {' '.join(given)}", done, summary(out)]
    return "\n".join(lines) + "\n"


def happenings() -> list[dict[str, Any]]:
    """Return what may happen to a simulated run: workers that are lost and come; networks."""
    loss, arrival = (kinds_of("changes")[field] for field in ("worker", "speed"))
    cost = kinds_of("cost")["storage_bytes_s"](**COST)
    network = kinds_of("network")["machine_workers"]
    changes = ([loss(0.03, "a")], [arrival(0.03, "d", 0.8)], [loss(0.01, it) for it in SPEEDS],
               [arrival(0.01, "d", 0.8), loss(0.07, "c")])  # fmt: skip
    found = [{"cost": cost, "changes": it} for it in changes]
    return found + [{"cost": cost, "network": network(**it)} for it in NETWORKS]


def use(place: Place, run: Path) -> str:
    """Return what a run's model says of the test rows."""
    import numpy as np

    import daskxml

    header, *lines = place.rows["test"].read_text(encoding="utf-8").splitlines()
    rows, features, labels = map(int, header.split())
    X, Y = np.zeros((rows, features), np.float32), np.zeros((rows, labels), np.float32)
    for row, line in enumerate(lines):
        Y[row, [int(label) for label in line.split()[0].split(",")]] = 1
        for feature, _, value in (pair.partition(":") for pair in line.split()[1:]):
            X[row, int(feature)] = float(value)
    model = daskxml.load(run)
    scores = model.predict(X, 4)
    arrays = (scores.data, scores.indices, scores.indptr, *model.predict_top_k(X, 3))
    hashes = " ".join(digest(np.ascontiguousarray(it).tobytes()) for it in arrays)
    return f"{run.name} {model!r} {hashes}\n{json.dumps(model.evaluate(X, Y))}\n"


@contextlib.contextmanager
def cluster(folder: Path, workers: Sequence[str]) -> Iterator[str]:
    """Start a scheduler and workers with these options; yield its address; end them."""
    folder.mkdir(parents=True, exist_ok=True)
    file = str(folder / "scheduler.json")
    lines = ["scheduler --host 127.0.0.1 --port 0 --dashboard-address 127.0.0.1:0"]
    lines += [f"worker --no-nanny --nthreads 1 {options}" for options in workers]
    wait = ("import sys, distributed as d\nc = d.Client(scheduler_file=sys.argv[1])\n"
            "c.wait_for_workers(int(sys.argv[2]), 60); print(c.scheduler.address)")  # fmt: skip
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("w"))
        for line in lines if workers else ():
            call = [sys.executable, "-m", "dask", *line.split(), "--scheduler-file", file]
            process = subprocess.Popen(call, cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        call = [sys.executable, "-c", wait if workers else "", file, str(len(workers))]
        yield subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()


def real(place: Place) -> None:
    """Every run file on clusters and in the simulator, begun and resumed."""
    place.write_rows(400, 120, 40)
    visit_all(place)


def old(place: Place) -> None:
    """What this version makes of runs that another one has kept."""
    if place.old is not None:
        shutil.copytree(place.old, place.work, dirs_exist_ok=True)
        visit_all(place)


def visit_all(place: Place) -> None:
    """Go through the runs of every kind."""
    for kind, text in spread(functools.partial(visit, place), KINDS).items():
        place.save(f"{kind}.txt", text, is_timed=kind != "simulated")


def visit(place: Place, kind: str) -> str:
    """Begin runs of one kind if there are none, read them, resume them; return what came out."""
    with cluster(place.work / f"cluster-{kind}", KINDS[kind]) as address:
        told = "" if (place.work / kind).exists() else begin(place, kind, address)
        runs = sorted((place.work / kind).iterdir())
        names, first = " ".join(f"{kind}/{run.name}" for run in runs), f"{kind}/{runs[0].name}"
        lines = [
            f"report {names} --out report-{kind}",
            *(f"{it} {first} test.txt" for it in ("evaluate", f"predict --out {kind}.npz")),
        ]
        told += call_all(place.work, lines)
        for run in runs:
            how = {"resume": run, "overrides": ["training.megabatches=5"], **place.rows}
            told += attempt(use, place, run)
            told += attempt(execute, kind, run / "run.toml", run.name, address, **how)
            describe(place, run, f"{kind}/{run.name}-resumed", is_timed=kind != "simulated")
            told += f"\n{attempt(use, place, run)}"
    return told


def begin(place: Place, kind: str, address: str) -> str:
    """Begin the runs of one kind, keep them if that is wanted, and return what came out."""
    told = ""
    for name in run_files():
        is_pool, run = has_pool(name), place.work / kind / name
        if {"pair": name in PAIRED, "pool": is_pool, "plain": not is_pool}.get(kind, True):
            how = {"out": run, "overrides": settings(name), **place.rows}
            told += f"{name} {attempt(execute, kind, name, name, address, **how)}\n"
            describe(place, run, f"{kind}/{name}", is_timed=kind != "simulated")
    if place.keep is not None:
        shutil.copytree(place.work / kind, place.keep / kind)
        for path in place.rows.values():
            shutil.copy(path, place.keep)
    return told


def messages(place: Place) -> None:
    """Wrong values of every key of every section, and rows that cannot be read."""
    place.write_rows(60, 30, 8)
    write_files(place.work)
    told = spread(functools.partial(misuse, place), ["rows", *run_files()])
    for name in filter(told.get, told):
        place.save(f"{name}.txt", told[name])


def misuse(place: Place, name: str) -> str:
    """Return what a strategy's keys say to wrong values; the first one's, of all sections."""
    import daskxml

    if name == "rows":
        return misread(place)
    how = {"out": place.work / name, "overrides": settings(name), **place.rows}
    attempt(execute, "simulated", name, name, **how)
    config = config_of(place.work / name)
    own = ["strategy"] if config["strategy"]["name"] == name else []
    lines = []
    for section in config if name == "adaptive-sgd" else own:
        wrong = {f"{section}.{key[:-1]}": [1] for key in config[section]}
        wrong |= {f"{section}.{key}": list(VALUES) for key in config[section]}
        wrong |= {f"{section[1:]}.{section}": [1], f"{section}.other": [1]}
        for key, value in ((each, value) for each in wrong for value in wrong[each]):
            told = attempt(daskxml.simulate, name, [1.0], overrides={key: value})
            lines.append(f"{key} = {value!r}: {told}\n")
    return "".join(lines)


def misread(place: Place) -> str:
    """Return what is said of good and bad rows, in the simulator and on a cluster."""
    import daskxml

    told, config = "", tomllib.loads(RUN_FILE)
    with cluster(place.work / "cluster", KINDS["plain"]) as address:
        for path in sorted({*place.work.glob("*.txt*"), *place.work.glob("*.svm")}):
            told += f"{path.name}\n{attempt(daskxml.simulate, config, [1.0], train=path)}\n"
            told += f"{attempt(daskxml.train, config, scheduler=address, train=path)}\n"
    return told


def write_files(folder: Path) -> None:
    """Write good and bad rows, run files and suites."""
    good = "\n".join(GOOD)
    zipped = gzip.compress(good.encode(), mtime=0)
    files: dict[str, str | bytes] = {
        "good.txt": good, "more.txt": good.replace("60", "90", 1), "fewer.txt": f"9{good[2:]}",
        "cut.txt": good[:-6], "cut.txt.gz": zipped[:-40], "plain.txt.gz": good, "empty.txt": "",
        "flipped.txt.gz": zipped[:99] + b"###" + zipped[102:], "zero.txt": "0 20 7\n",
        "picture.txt": b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "table.txt": "label;a;b\n1;2;3\n",
        "unlabelled.txt": "9 20 7\n" + " 3:1 4:1\n" * 9, "wide.txt": good.replace("20", "25", 1),
        "wide.svm": "1 24:1\n" * 9, "one.txt": "1 20 7\n1 3:1\n", "file": "in the way",
        "run.toml": RUN_FILE, "key.toml": RUN_FILE.replace("batch_max", "batch_mox"),
        "section.toml": RUN_FILE.replace("training", "trainig"), "syntax.toml": "[training\n",
        "endless.toml": RUN_FILE.replace("= 3", "= 0"), "outside.toml": "lr = 1\n" + RUN_FILE,
        "suite.toml": SUITE, "bad-suite.toml": SUITE.replace("workers", "workrs"),
    }  # fmt: skip
    for name, row in BAD_ROWS.items():
        files[f"{name}.txt"] = "\n".join([*GOOD[:5], row, *GOOD[6:]])
        files[f"{name}.svm"] = "\n".join([*GOOD[1:5], row, *GOOD[6:]])
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def cli(place: Place) -> None:
    """A transcript of the command, right and wrong."""
    write_files(place.work)
    (place.work / "folder").mkdir()
    run = "run.toml --train good.txt --test good.txt --out"
    text = call(place.work, f"simulate {run} run --speeds 1")
    for name, file, pattern, put in DAMAGED:
        path = Path(shutil.copytree(place.work / "run", place.work / name), file)
        damaged = re.sub(pattern, put or b"", path.read_bytes(), flags=re.S)
        path.unlink() if put is None else path.write_bytes(damaged)
    helped = re.findall(r"^    (\w+) ", call(place.work, "--help"), re.M)
    text += call_all(place.work, ["--help", *(f"{name} --help" for name in helped)])
    inspected = ["good", "no", "empty", "zero", "more", "picture", "table", *BAD_ROWS]
    ends = "good.txt --json | good.txt wide.txt" + "".join(f" | {it}.txt" for it in inspected)
    with (place.work / "locked" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for start, lines in (COMMANDS | {"inspect": ends}).items():
            called = [f"{start} {' '.join(end.split())}" for end in lines.split("|")]
            place.save(
                f"{start or 'various'}.txt", call_all(place.work, called), is_timed=start == "bench"
            )
    place.save("run.txt", text)
    place.save("cluster.txt", local(place) + scheduled(place), is_timed=True)
    place.save("left.txt", "\n".join(sorted(it.name for it in place.work.iterdir())))


def local(place: Place) -> str:
    """Return what is said of runs on local clusters, of which the last one is interrupted."""
    train = "train run.toml --train good.txt --test good.txt --workers 1 --out"
    told = call_all(place.work, [f"{train} local", f"{train} local-2 --train malformed.txt"])
    told += call(place.work, "train --resume local --set training.megabatches=5")
    topics = [line.split("  ")[0] for line in call(place.work, "inspect").splitlines()]
    told += "\n".join(filter(None, topics)) + "\n"
    line = f"{train} stopped --set training.megabatches=0 --set training.minutes=2".split()
    process = subprocess.Popen([COMMAND, *line], cwd=place.work, text=True, stdout=-1, stderr=-2)
    lines = []
    for text in typing.cast(typing.IO[str], process.stdout):
        lines.append(text)
        if text.startswith("mega-batch 3 "):
            process.terminate()  # as Ctrl-C, which a job in the background would not hear
    kept = [text for text in lines if not re.match(r"mega-batch|after|.*[│┃]", text)]
    return f"{told}{''.join(kept)}= {process.wait(60)}\n"


def scheduled(place: Place) -> str:
    """Return what is said with a scheduler: of bad input, and of a run that is left to it."""
    with cluster(place.work / "cluster", KINDS["plain"]) as address:
        at = f"--scheduler {address}"
        told = call(place.work, f"runs {at}") + call(place.work, f"attach nobody {at}")
        lines = [
            f"train run.toml {at} --train {' '.join(it.split())}" for it in SCHEDULED.split("|")
        ]
        told += call_all(place.work, [it if "resume" in it else f"{it} --out NEW" for it in lines])
        begin = f"train run.toml --train good.txt --test good.txt --detach --out left {at}"
        told += call(place.work, begin)
        run = re.findall(r"^run +(\w+)", told, re.M)[-1]
        told += call(place.work, f"attach {run} {at}")
        told += watched(re.findall(r"^dashboard +(\S+)", told, re.M)[-1])
        for line in ("runs", "runs --json", f"stop {run} --forget", "runs"):
            told += call(place.work, f"{line} {at}")
    return told


def watched(page: str) -> str:
    """Return the title of a scheduler's page, and the names of its figures for Prometheus."""
    with urllib.request.urlopen(page) as answer:
        title = re.findall(r"<title>.*?</title>", answer.read().decode(), re.S)
    with urllib.request.urlopen(page.replace("/daskxml", "/metrics")) as answer:
        figures = re.findall(r"^.*\bdaskxml_.*$", answer.read().decode(), re.M)
    return "\n".join([*title, *(re.sub(r"^([^#].*) \S+$", r"\1", it) for it in figures)]) + "\n"


def public(place: Place) -> None:
    """Names, kinds and signatures of what daskxml offers, and of its classes' members."""
    import daskxml

    lines = []
    for name in sorted(daskxml.__all__):
        it = getattr(daskxml, name)
        lines.append(f"{name}: {type(it).__name__} {signature(it)}")
        if inspect.isclass(it):
            lines.append(f"  is {[kind.__name__ for kind in it.__mro__]}")
            for key in (key for key in dir(it) if not key.startswith("_")):
                member = inspect.getattr_static(it, key)
                lines.append(f"  {key}: {type(member).__name__} {signature(member)}")
    place.save("names.txt", re.sub(r"daskxml\.(\w+\.)+", "", "\n".join(lines)))


def signature(it: Any) -> str:
    """Return how something is called, if it is."""
    with contextlib.suppress(TypeError, ValueError):
        return str(inspect.signature(getattr(it, "fget", None) or getattr(it, "__func__", it)))
    return ""


SECTIONS = {it.__name__: it for it in (simulate, variants, real, messages, cli, public, old)}


def main() -> None:
    """Do the sections that are asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write to; sections there are replaced")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas")
    parser.add_argument("--keep", type=Path, help="new folder that run directories are kept in")
    parser.add_argument("--old", type=Path, help="folder that another version has kept")
    given = parser.parse_args()
    os.environ |= ENVIRONMENT
    keep, kept = (it and it.absolute() for it in (given.keep, given.old))
    for name in given.only.split(","):
        begun, out = time.monotonic(), given.out.absolute() / name
        shutil.rmtree(out, ignore_errors=True)
        with (
            tempfile.TemporaryDirectory(prefix="traces-") as work,
            ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            pool.submit(SECTIONS[name], Place(out, Path(work), keep, kept)).result()
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
