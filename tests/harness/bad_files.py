"""Good and bad files of rows, run files and runs that are damaged."""

import gzip
from collections.abc import Callable
from pathlib import Path

RUN_FILE = """[model]
hidden = [4]
[strategy]
batch_max = 8
megabatch_batches = 4
lr = 0.5
[training]
megabatches = 3
[cluster]
threads = 1
"""
ROWS = [f"{i % 5},{(i + 1) % 7} {i % 9}:1 {9 + i % 11}:0.5" for i in range(60)]
HEADER = "60 20 7"


def text(*lines: str, header: str = HEADER) -> bytes:
    return "\n".join([header, *lines, ""]).encode()


def with_row(row: str) -> bytes:
    """Good rows, but for the one in line 6."""
    return text(*ROWS[:4], row, *ROWS[5:])


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


GOOD = text(*ROWS)
ZIPPED = gzip.compress(GOOD, mtime=0)
FILES = {
    "good.txt": GOOD,
    "malformed.txt": with_row("1 3=1"),
    "label-range.txt": with_row("1,99 3:1"),
    "more-rows.txt": text(*ROWS, header="90 20 7"),
    "fewer-rows.txt": text(*ROWS, header="9 20 7"),
    "cut.txt.gz": ZIPPED[:-40],
    "flipped.txt.gz": flip(ZIPPED, len(ZIPPED) // 2),
    "plain.txt.gz": GOOD,
    "empty.txt": b"",
    "zero.txt": text(header="0 20 7"),
    "picture.txt": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9,
    "table.txt": b"label;a;b\n1;2;3\n",
    "nan.txt": with_row("1 3:nan"),
    "overflow.txt": with_row("1 3:1e99"),
    "minus.txt": b"-1 3:1\n+1 4:1\n",
    "no-labels.txt": text(*[" 3:1 4:1"] * 9, header="9 20 7"),
    "one-row.txt": text("1 3:1", header="1 20 7"),
    "one-label.txt": text(*["0 3:1 4:2"] * 30, header="30 20 1"),
    "enormous.txt": text(*ROWS, header="60 2000000000 2000000000"),
    "null.jsonl": b'{"labels": [0], "indices": [1]}\n{"labels": null, "indices": [1]}\n',
    "no-labels.csv": b"tags,features\n0,1:1\n",
    "cut.parquet": b"PAR1" + bytes(99),
    "wide.txt": text(*ROWS[:9], header="9 25 7"),
    "wide.svm": b"1 24:1\n" * 9,
    "run.toml": RUN_FILE.encode(),
    "key.toml": RUN_FILE.replace("batch_max", "batch_mox").encode(),
    "value.toml": RUN_FILE.replace("0.5", '"fast"').encode(),
    "section.toml": RUN_FILE.replace("[training]", "[trainig]").encode(),
    "syntax.toml": b"[training\nmegabatches = 3\n",
    "endless.toml": RUN_FILE.replace("= 3", "= 0").encode(),
    "file": b"in the way",
}


def edited(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text((run / name).read_text().replace(old, new))


def flipped(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(flip((run / name).read_bytes(), -9))


def shortened(name: str, by: int) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:-by])


def without(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).unlink()


CHECKPOINT = "checkpoints/000003.safetensors"
DAMAGED: dict[str, Callable[[Path], object]] = {
    "short": shortened("model.safetensors", 100),
    "flipped": flipped("model.safetensors"),
    "edited": edited("model.json", '"training_rows": 60', '"training_rows": 61'),
    "later": edited("model.json", '"format_version": 1', '"format_version": 2'),
    "undescribed": without("model.json"),
    "half-described": shortened("model.json", 20),
    "unweighted": without("model.safetensors"),
    "short-checkpoint": shortened(CHECKPOINT, 100),
    "flipped-checkpoint": flipped(CHECKPOINT),
    "no-checkpoint": without(CHECKPOINT),
    "no-run-file": without("run.toml"),
    "reshaped": lambda run: None,
    "other-rows": lambda run: None,
    "bad-run-file": edited("run.toml", "[data]", "[data"),
}
