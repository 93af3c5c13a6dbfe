"""``daskxml bench``: do every cell of a suite, and show what came out."""

from __future__ import annotations

from pathlib import Path

from daskxml.bench import load_suite, run_bench
from daskxml.bench.session import TABLE
from daskxml.cli.arguments import Options

FAILED = 1
RUNS = Path("runs")


def run(options: Options) -> int:
    """Run the bench, print its table, and say what failed.

    Returns
    -------
    The exit status: 1 where a cell failed or none could be done, else 0.
    """
    suite = load_suite(options.suite)
    out = Path(options.out) if options.out else RUNS / f"bench-{suite.name}"
    print(f"bench {suite.name} in {out}; if it is broken off, the same command goes on", flush=True)
    done = run_bench(suite, out, data=options.data, against=options.against, tell=_tell)
    print(f"\n{(done.path / TABLE).read_text(encoding='utf-8')}")
    skipped = done.count("skipped")
    if skipped == len(done.cells):
        print("nothing was done: every cell was skipped")
        return FAILED
    if done.failed:
        print(f"{done.failed} of {len(done.cells)} cells failed")
    return FAILED if done.failed else 0


def _tell(text: str) -> None:
    print(text, end="", flush=True)
