"""Figures and tables of the papers again, simulated: one TOML file each, beside this file.

    python benchmarks/papers/run.py FIGURE ... --data FOLDER [--sets bibtex,...]
    python benchmarks/papers/run.py all --data FOLDER

``slide_speed`` and ``learning_rates`` come before the figures of Adaptive SGD; ``all`` keeps that
order. `FOLDER` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz`` of bibtex, delicious,
stackex4-2k and nvd-product, and for Hogbatch the training files of a9a, w8a and rcv1-binary-sub;
the generated set is written when it is first needed. Finished runs are kept in ``runs/figures/``:
figures share them. Results are ``NAME.csv``, ``NAME.png`` and the numbers in ``NAME.md``, in
``benchmarks/results/figures/``. Needs matplotlib (``daskxml[bench]``).
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from pathlib import Path

import adaptive
import adasum
import adasum_partition
import factorial
import hogbatch
from drawing import Figure

HERE = Path(__file__).parent
FIRST = ("slide_speed", "learning_rates")
KINDS: dict[str, Callable[[Figure], None]] = {
    **adaptive.KINDS, **adasum.KINDS, **adasum_partition.KINDS, **factorial.KINDS,
    **hogbatch.KINDS,
}  # fmt: skip


def figures() -> dict[str, dict[str, object]]:
    """Return every figure's file by name, those first that others need."""
    found = {path.stem: tomllib.loads(path.read_text()) for path in sorted(HERE.glob("*.toml"))}
    named = {name: given for name, given in found.items() if "kind" in given}
    return {name: named[name] for name in (*FIRST, *sorted(named.keys() - {*FIRST}))}


def main() -> None:
    """Make what is asked for."""
    known = figures()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", nargs="+", choices=["all", *known])
    parser.add_argument("--data", type=Path, default=Path(), help="folder with NAME.train.txt.gz")
    parser.add_argument("--sets", type=lambda text: text.split(","), help="default: the file's")
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=[])
    options = parser.parse_args()
    for name in known if "all" in options.figure else options.figure:
        print(f"== {name}", flush=True)
        given = known[name]
        sets = options.sets or given.get("sets", ())
        KINDS[str(given["kind"])](
            Figure(
                name=name, given=given, folder=options.data, sets=sets,
                algorithms=options.algorithms,
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
