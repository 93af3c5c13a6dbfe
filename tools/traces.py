"""Write down what an installed daskxml does, so that two versions of it can be compared.

Whoever moves or renames things, and means to change no behaviour, proves it with this script::

    OLD/.venv/bin/python tools/traces.py traces/old
    NEW/.venv/bin/python tools/traces.py traces/new
    diff -r traces/old traces/new

It goes through doors that stay: the command, the names in ``daskxml.__all__``, the files that a
run writes. ``--only simulate,cli`` does some of the sections:

========  ======================================================================================
simulate  every run file by the command: histories byte by byte, hashes of all tensors, reports
variants  every run file with `OPTIONS`, and where workers are lost and come
cli       a transcript of the command: texts, errors, exit statuses
public    names, signatures and members
========  ======================================================================================

Paths, addresses and what a clock decides are masked; virtual times are not. Both versions need one
machine and one set of packages. Runs on clusters, what every key says to wrong values, and models
that older versions have stored are the tests' matter.
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
from collections.abc import Callable, Iterable
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
MASKS = {
    r"\b(tcp|http)://127[\d.]+:\d+": r"\1://ADDRESS", r" at 0x[0-9a-f]+": "",
    r"20\d\d-\d\d-\d\d([T ][\d:]+(\+[\d:]+)?)?": "DATE", r"(?<=which has )[\d.]+": "MEMORY",
    r"\b[0-9a-f]{40}\b": "COMMIT",
}  # fmt: skip
CLOCKS = {
    r"[\d,.]+(?= rows/s| s\b)": "N", r" {2,}": " ", r'("\w+_s"): [\d.e-]+': r"\1: N",
    r"(?m)^.*; Python 3.*$": "MACHINE", r"(?m)[\d,.]+(?= MiB$| \| 1 \|$)": "N",
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
combine.outer=nesterov combine.outer_lr=0.5 | combine.transfer=bfloat16 optimizer.name=adam
optimizer.on_merge=reset | model.loss=sigmoid model.output_bias=-3.0 | model.hidden=[] |
model.hidden=[12,6] model.dropout=0.3 model.activation=sigmoid model.feature_dropout=0.1 |
data.validation=0.2 | data.residency=shard data.partitions=5 | data.normalize=none
training.epochs=0.5 | evaluation.training_loss=true evaluation.k=[2,4] | training.logits_budget=4KiB
| training.target=0.05 | training.minutes=0.001 | strategy.rule=paper strategy.norm=literal
strategy.renormalize=false | strategy.momentum=0.0 strategy.perturbation_threshold=1e9 |
strategy.batch_initial=16 strategy.batch_min=4 strategy.beta=4.0 | strategy.weighting=rows |
strategy.merge=step | strategy.local_steps=2 | strategy.staleness=0 |
strategy.lr_rows=batch | strategy.per_thread=true | cluster.device=cuda"""
SIMULATED = """adaptive-sgd --compare elastic static --speeds 1,0.5 |
elastic --compare elastic --cost 1e-3,1e-4,1e-6 --jitter 0.2 --bandwidth 10MB/s --latency 1e-3
--message 2e-3 --speeds x=1,y=0.5 | adaptive-sgd-pool --pool x=2
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
"simulate --train good.txt --out NEW": """run.toml | absent.toml --speeds 1 | key.toml --speeds 1 |
section.toml --speeds 1 | syntax.toml --speeds 1 | endless.toml --speeds 1 | outside.toml --speeds
1 | mirrored --speeds a=1,b=1 --pool b=2 | elastic --speeds 1,1 --set combine.rule=sum | network
--speeds 1,1 --set training.epochs=0 --set training.megabatches=2""",
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
RUN_FILE = ("[model]\nhidden = [4]\n[strategy]\nbatch_max = 8\nmegabatch_batches = 4\nlr = 0.5\n"
            "[training]\nmegabatches = 3\n[cluster]\nthreads = 1\n")  # fmt: skip
SUITE = """[suite]\ntitle = "two cells"\n[data.tiny]\nrows = 300\ntest_rows = 50\nfeatures = 40
labels = 9\n[[matrix]]\nrun = ["best"]\ndata = ["tiny"]\nworkers = [2]
executors = ["simulate"]
"""
GOOD = ["60 20 7", *(f"{i % 5},{(i + 1) % 7} {i % 9}:1 {9 + i % 11}:0.5" for i in range(60)), ""]
BAD_ROWS = {"malformed": "1 3=1", "label": "1,99 3:1", "feature": "1 44:1", "nan": "1 3:nan"}
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
    """Where a section works and writes."""

    out: Path
    work: Path

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


def tensors(run: Path) -> str:
    """Return a line for every tensor of a run's model and checkpoints, and for what is beside."""
    from safetensors import deserialize, safe_open

    lines = []
    for path in sorted(run.rglob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            beside: dict[str, Any] = dict(file.metadata() or {})
        for name, it in deserialize(path.read_bytes()):
            beside[name] = f"{it['dtype']} {it['shape']} {digest(bytes(it['data']))}"
        lines += [f"{path.relative_to(run)} {name}: {beside[name]}\n" for name in sorted(beside)]
    return "".join(lines)


def config_of(run: Path) -> dict[str, dict[str, Any]]:
    """Return the resolved settings of a run, which has none if it could not begin."""
    path = run / "run.toml"
    return tomllib.loads(path.read_text("utf-8")) if path.exists() else {"strategy": {"name": ""}}


def describe(place: Place, run: Path, name: str) -> None:
    """Write down everything in a run's directory; of its environment, what is told."""
    files = sorted(path for path in run.rglob("*") if path.is_file())
    for path in files:
        if path.suffix in (".toml", ".json", ".jsonl", ".csv", ".html"):
            text = path.read_text(encoding="utf-8")
            if path.name == "environment.json":
                text = re.sub(r'("[^"]*"|[\d.]+|null)(,?)$', r"_\2", text, flags=re.M)
            if path.name == "model.json":
                text = re.sub(r'^  "(sha256|daskxml_version)".*', "", text, flags=re.M)
            place.save(f"{name}/{path.relative_to(run)}", text)
    place.save(f"{name}/tensors.txt", tensors(run))
    place.save(f"{name}/files.txt", "".join(f"{path.relative_to(run)}\n" for path in files))


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


def execute(config: Any, name: str, **how: Any) -> Any:
    """Train in the simulator; return the run."""
    import daskxml

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
    lines = [attempt(execute, name, name, **how), *map(str, events)]
    is_own = config_of(run)["strategy"]["name"] == name
    tried: list[tuple[str, dict[str, Any]]]
    tried = [(it, {}) for it in OPTIONS.split("|")[:: 1 if is_own else 3]]
    for extra in ("", "combine.rule=adasum combine.inside=mean"):
        tried += [(f"{extra} training.megabatches=5", how) for how in happenings()]
    for number, (options, how) in enumerate(tried):
        given, out = options.split(), run / str(number)
        how |= {"out": out, "overrides": settings(name, *given), **place.rows}
        done = attempt(execute, name, name, **how)
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
    inspected = ["good", "empty", "zero", "more", "picture", "table", *BAD_ROWS]
    ends = "good.txt --json | good.txt wide.txt" + "".join(f" | {it}.txt" for it in inspected)
    with (place.work / "locked" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for start, lines in (COMMANDS | {"inspect": ends}).items():
            called = [f"{start} {' '.join(end.split())}" for end in lines.split("|")]
            place.save(
                f"{start or 'various'}.txt", call_all(place.work, called), is_timed=start == "bench"
            )
    place.save("run.txt", text)
    place.save("left.txt", "\n".join(sorted(it.name for it in place.work.iterdir())))


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


SECTIONS = {it.__name__: it for it in (simulate, variants, cli, public)}


def main() -> None:
    """Do the sections that are asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write to; sections there are replaced")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas")
    given = parser.parse_args()
    os.environ |= ENVIRONMENT
    for name in given.only.split(","):
        begun, out = time.monotonic(), given.out.absolute() / name
        shutil.rmtree(out, ignore_errors=True)
        with (
            tempfile.TemporaryDirectory(prefix="traces-") as work,
            ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            pool.submit(SECTIONS[name], Place(out, Path(work))).result()
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
