"""Fuzzing of every reader: damaged input is read, or refused by an error of daskxml, never else.

    PYTHONPATH=tests python -m fuzz.readers NAME COUNT [SEED]

damages good files in ways that ``SEED`` decides, COUNT times, and prints how many were refused.
What a reader raises beside `DaskxmlError` ends it, with the number that repeats the input.
"""

import asyncio
import gzip
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import daskxml
from daskxml.api.in_process import simulate, train_here
from daskxml.cli.asgi import create_app
from daskxml.config import load_run_config
from daskxml.core.errors import DaskxmlError, InputError, ModelError
from daskxml.data.formats import plan_files, read_block
from daskxml.data.parse import Dialect, parse_bytes
from daskxml.data.settings import load_card
from daskxml.data.side_files import read_names
from daskxml.models.store import read_model
from daskxml.models.tensors import read_tensors, write_tensors
from daskxml.models.trained import Model
from daskxml.observe.report import read_run
from daskxml.records.checkpoint import read_checkpoint
from daskxml.records.run_dir import HISTORY_FILE, RunDir, check_rows
from daskxml.records.verification import verify
from harness.bad_files import GOOD, RUN_FILE
from harness.naive_parser import assert_agree
from harness.table_files import WRITERS

DIALECT = Dialect(features=20, labels=7)
TABLE = [([i % 5], [i % 9, 9 + i % 11], [1.0, 0.5]) for i in range(20)]
WORDS = (
    b"", b" ", b"\n", b"\r\n", b"\t", b":", b",", b"-", b"+", b".", b"e", b"0", b"9" * 30, b"nan",
    b"inf", b"1e999", b"\0", b"\xff", b"\xef\xbb\xbf", b"[", b"]", b"{", b"}", b'"', b"=", b"#",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2, 10**30, -(10**400), 1e308, float("nan"), float("inf"), -5.5, "", "x",
    "\ud800", "\x1b[31m", [], {}, [[]], {"a": 1}, [1, 2], "9" * 5000,
)  # fmt: skip

REQUEST: dict[str, Any] = {
    "rows": [{"ids": [3, 17], "values": [0.5, 2]}, {"ids": [1]}], "k": 2, "explain": 1
}  # fmt: skip
NUMBERS = tuple(
    np.array(number, dtype).tobytes()
    for dtype, numbers in {
        "<f4": (np.nan, np.inf, -3e38, -1.0), "<i4": (0, 1, -1, 7, 2**31 - 1), "<u2": ([1, 65535],),
        "<i8": (0, 3, 2**62, -(2**62) - 1, [2**62, -(2**62) - 1], 2**63 - 1),
    }.items() for number in numbers
)  # fmt: skip


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, insert, delete, repeat or cut something, one to four times."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        stop = min(len(data), at + rng.choice((1, 1, 2, 8, 100)))
        match rng.randrange(5):
            case 0:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + rng.choice(WORDS) + data[at:]
            case 2:
                data = data[:at] + data[stop:]
            case 3:
                data = data[:at] + data[at:stop] * rng.randint(2, 5) + data[stop:]
            case _:
                data = data[:at]
    return data


def damage_numbers(data: bytes, rng: random.Random) -> bytes:
    """Replace one to four numbers of four bytes, eight or two times eight."""
    numbers = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        number = rng.choice(NUMBERS)
        at = rng.randrange(max(1, len(data) // 4)) * 4
        numbers[at : at + len(number)] = number
    return bytes(numbers)


def damage_binary(data: bytes, rng: random.Random) -> bytes:
    """Damage bytes, or numbers."""
    return rng.choice((damage_bytes, damage_numbers))(data, rng)


def damage_value(value: Any, rng: random.Random) -> Any:
    """Replace or remove something inside a JSON value, or the whole of it."""
    value = json.loads(json.dumps(value))
    place: Any = {"whole": value}
    inside, key = place, "whole"
    while isinstance(inside[key], dict | list) and inside[key] and rng.random() < 0.9:
        inside = inside[key]
        key = rng.choice([*inside] if isinstance(inside, dict) else range(len(inside)))
    if rng.random() < 0.2:
        del inside[key]
    else:
        inside[key] = rng.choice(VALUES)
    return place.get("whole")


def damage_json(data: bytes, rng: random.Random) -> bytes:
    """Damage the value of a JSON file, a value a line, or its bytes."""
    if rng.random() < 0.3:
        return damage_bytes(data, rng)
    try:
        rows = [json.loads(data)]
    except ValueError:
        rows = [json.loads(line) for line in data.splitlines() if line]
    at = rng.randrange(len(rows))
    rows[at] = damage_value(rows[at], rng)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


Damage = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Reader:
    """A reader: the good file, by its name in a run's directory or by its bytes; what reads it."""

    good: str | bytes
    read: Callable[[Path], Any]
    damage: Damage = damage_bytes
    name: str = "file"


def _rows(path: Path, **counted: Any) -> None:
    for block in plan_files([str(path)], 1 << 20):
        read_block(block, Dialect(**counted))


def _dense(path: Path) -> None:
    _rows(path, feature_names=("y", "x"), features=2)


def _environment(path: Path) -> None:
    with suppress(ModelError):  # other rows
        check_rows(path.parent, [1])


def _text(path: Path) -> None:
    assert_agree(path.read_bytes(), DIALECT, blank_rows=False)
    parse_bytes(path.read_bytes(), DIALECT)  # once more: it says whether it refuses


def _damage_gzip(data: bytes, rng: random.Random) -> bytes:
    """Damage the file, or what is in it."""
    if rng.random() < 0.3:
        return damage_bytes(data, rng)
    return gzip.compress(damage_bytes(gzip.decompress(data), rng), mtime=0)


def _damage_checkpoint(data: bytes, rng: random.Random) -> bytes:
    """Damage the bytes, or the session inside and write the checksum anew."""
    if rng.random() < 0.3:
        return damage_bytes(data, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.safetensors"
        path.write_bytes(data)
        arrays, metadata = read_tensors(path)
        held = {name: np.array(array) for name, array in arrays.items()}
        metadata["session"] = json.dumps(damage_value(json.loads(metadata["session"]), rng))
        write_tensors(path, held, metadata)
        return path.read_bytes()


def _damage_model(data: bytes, rng: random.Random) -> bytes:
    """Damage the description, the names and shapes of the arrays, or numbers in them."""
    described, tensors = data.split(b"\n", 1)
    size = int.from_bytes(tensors[:8], "little")
    names, numbers = tensors[8 : 8 + size], tensors[8 + size :]
    match rng.randrange(4):
        case 0:
            described = json.dumps(damage_value(json.loads(described), rng)).encode()
        case 1:
            names = json.dumps(damage_value(json.loads(names), rng)).encode()
        case 2:
            return described + b"\n" + damage_bytes(tensors, rng)
        case _:
            numbers = damage_numbers(numbers, rng)
    return described + b"\n" + len(names).to_bytes(8, "little") + names + numbers


def _read_bundle(path: Path) -> None:
    """Sign a damaged model as its writer would, so that no checksum tells; read it and rank."""
    text, tensors = path.read_bytes().split(b"\n", 1)
    folder = path.with_suffix(".model")
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(tensors)
    described = json.loads(text)
    if isinstance(described, dict):
        digest = hashlib.sha256(tensors).hexdigest()
        described |= {"tensors": {"size_bytes": len(tensors), "sha256": digest}}
        described.pop("sha256", None)
        signed = json.dumps(described, sort_keys=True).encode()
        described["sha256"] = hashlib.sha256(signed).hexdigest()
    (folder / "model.json").write_text(json.dumps(described))
    model = Model.load(folder, threads=1)
    rows = sp.random(5, min(model.spec.features, 10**6), 0.5, "csr", rng=np.random.default_rng(1))
    rows.resize(5, model.spec.features)
    with np.errstate(all="ignore"):  # a model of enormous numbers is a model
        ids, _ = model.predict_top_k(rows, 3)
        assert ((ids >= -1) & (ids < model.spec.labels)).all()


def _read_checkpoint(path: Path) -> None:
    RunDir(path.parents[1], str(path)).history()
    read_checkpoint(path)


@cache
def _server(folder: Path) -> tuple[Any, asyncio.AbstractEventLoop, object]:
    """Start the application of ``daskxml serve`` for a model, without a socket; it stays."""
    app, loop = create_app(folder), asyncio.new_event_loop()
    lifespan = app.router.lifespan_context(app)
    loop.run_until_complete(lifespan.__aenter__())
    return app, loop, lifespan


def _read_request(path: Path) -> None:
    """Ask for labels; an answer that is refused is an error, in one line."""
    app, loop, _ = _server(path.parent)
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/predict",
             "query_string": b"", "headers": []}  # fmt: skip
    asked = [{"type": "http.request", "body": path.read_bytes(), "more_body": False}]
    told = list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        return asked.pop()

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    loop.run_until_complete(app(scope, receive, send))
    answer = json.loads(b"".join(message.get("body", b"") for message in told))
    if told[0]["status"] != 200:
        assert 400 <= told[0]["status"] < 500, answer
        raise InputError(answer["error"])


DAMAGES = {"jsonl": damage_json} | dict.fromkeys(("arrow", "npz", "parquet"), damage_binary)
DENSE = b'{"labels": [1], "x": 0.5, "y": 0}\n{"y": -1e3, "labels": [0, 2], "x": 0}\n'
BUNDLES = ("network", "8 bits", "trees", "mixture")
READERS = {
    "text": Reader(b"\n".join(GOOD.splitlines()[1:13]), _text),
    "file": Reader(GOOD, _rows, name="rows.txt"),
    "gzip": Reader(gzip.compress(GOOD, mtime=0), _rows, _damage_gzip, name="rows.txt.gz"),
    "names": Reader(b"alpha\nbeta\ngamma\n", lambda path: read_names(str(path)), name="names.txt"),
    "run file": Reader(RUN_FILE.encode(), load_run_config, name="run.toml"),
    "request": Reader(json.dumps(REQUEST).encode(), _read_request, damage_json, "request.json"),
    "card": Reader(b"", lambda path: load_card(str(path)), name="card.toml"),
    "history": Reader(HISTORY_FILE, lambda path: verify(path.parent), damage_json),
    "report": Reader(HISTORY_FILE, lambda path: read_run(path.parent, "run"), damage_json),
    "environment": Reader("environment.json", _environment, damage_json),
    "model": Reader("model.json", lambda path: read_model(path.parent), damage_json),
    "tensors": Reader("model.safetensors", lambda path: read_model(path.parent), damage_binary),
    "checkpoint": Reader("checkpoints", _read_checkpoint, _damage_checkpoint),
    **{name: Reader(name, _read_bundle, _damage_model) for name in BUNDLES},
    **{
        name: Reader(name, _rows, DAMAGES.get(name.rpartition(".")[2], damage_bytes))
        for name in WRITERS
    },
    "dense.csv": Reader(b'labels,x,y\n1,0.5,0\n"0,2",0,-1e3\n', _dense, name="dense.csv"),
    "dense.jsonl": Reader(DENSE, _dense, damage_json, name="dense.jsonl"),
}


def write_good_run(folder: Path) -> None:
    """Write the directory of a run whose files are damaged."""
    rows = folder.with_suffix(".txt")
    rows.write_bytes(GOOD)
    config = load_run_config(
        {
            "data": {"train": [str(rows)], "test": [str(rows)]}, "model": {"hidden": [4]},
            "strategy": {"batch_max": 8, "megabatch_batches": 4, "lr": 0.5},
            "training": {"megabatches": 3}, "checkpoint": {"every": 1},
        }
    )  # fmt: skip
    simulate(config, speeds=[1.0, 0.5], out=folder)
    for name, write in WRITERS.items():
        write(folder / name, TABLE)
    _write_bundles(folder, rows)


def _write_bundles(folder: Path, rows: Path) -> None:
    """Write models of every kind, each with description and arrays in one file."""
    network = Model.load(folder, threads=1)
    settings = {"model.leaf_labels": 2, "training.trees": 1}
    trees = train_here("best", train=str(rows), overrides=settings).model
    small = [network.compress(bits=bits) for bits in (8, 16)]
    mixture = daskxml.mix([trees, small[1]], weights=[0.5, 0.5])
    for name, model in zip(BUNDLES, (network, small[0], trees, mixture), strict=True):
        at = folder / f"{name}.good"
        model.save(at)
        described = json.dumps(json.loads((at / "model.json").read_text())).encode()
        (folder / name).write_bytes(described + b"\n" + (at / "model.safetensors").read_bytes())


class UnforeseenError(AssertionError):
    """A reader raised what is no error of daskxml, at the input of this number."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(f"input {number}: {error!r}")
        self.number = number


def fuzz(reader: Reader, count: int, seed: int, run: Path) -> int:
    """Read ``count`` damaged inputs; return how many were refused.

    Parameters
    ----------
    run
        The directory of `write_good_run`, whose file is as it was afterwards.

    Raises
    ------
    UnforeseenError
        At the first input at which the reader raises anything but a `DaskxmlError`.
    """
    path = run / reader.name
    good = reader.good if isinstance(reader.good, bytes) else b""
    if isinstance(reader.good, str):
        path = run / reader.good
        path = max(path.glob("*.safetensors")) if path.is_dir() else path
        good = path.read_bytes()
    if not good:
        good = (Path(__file__).parents[2] / "datasets" / "bibtex.toml").read_bytes()
    refused = 0
    path.write_bytes(good)
    reader.read(path)
    try:
        for number in range(seed, seed + count):
            path.write_bytes(reader.damage(good, random.Random(number)))
            try:
                reader.read(path)
            except DaskxmlError as error:
                refused += len(error.message.splitlines()) == 1
            except Exception as error:
                raise UnforeseenError(number, error) from error
    finally:
        path.write_bytes(good)
    return refused


def main() -> None:
    """Fuzz one reader and print what came of it."""
    name, count = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_good_run(run)
        refused = fuzz(READERS[name], count, seed, run)
    print(json.dumps({"reader": name, "inputs": count, "first": seed, "refused": refused}))


if __name__ == "__main__":
    main()
