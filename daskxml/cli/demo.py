"""``daskxml demo``: generate data, train on two local workers, and show what came out."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from daskxml.cli.arguments import Options
from daskxml.cli.train import free_directories, train_and_report
from daskxml.config import load_run_config
from daskxml.data.cards import load_card
from daskxml.data.synthetic import write_xml
from daskxml.errors import ConfigError


def run(options: Options) -> int:
    """Train `pipelines/quickstart.toml` on the rows of ``datasets/demo.toml``."""
    card = load_card("demo")
    if card.synthetic is None:
        raise ConfigError("datasets/demo.toml has no [synthetic] section to generate rows from")
    out = options.out or next(free_directories("demo"))
    folder = Path(out).parent / "demo-data"
    train = write_xml(folder / card.train.file, card.synthetic, "train")
    test = write_xml(folder / card.test.file, card.synthetic, "test")
    values = {
        "run.name": "demo",
        "data.card": card.name,
        "data.train": str(train),
        "data.test": str(test),
        "cluster.workers": options.workers,
    }
    status = train_and_report(load_run_config("quickstart", values), out)
    print(f"\nTry: {typed_command()} evaluate {out} {test}")
    return status


def typed_command() -> str:
    """Return what calls daskxml in the user's shell: `make demo` has it in a folder of its own."""
    return "daskxml" if shutil.which("daskxml") else sys.argv[0]
