"""``daskxml attach``: follow a run of a scheduler, from its first mega-batch."""

from __future__ import annotations

from daskxml.cli.arguments import Options
from daskxml.cli.progress import make_progress
from daskxml.cli.train import INTERRUPTED, report


def run(options: Options) -> int:
    """Show the progress and what came out; Ctrl-C leaves the run as it is."""
    from daskxml.runtime.runs import attach

    try:
        with make_progress(f"daskxml {options.run}") as progress:
            done = attach(
                options.run,
                scheduler=options.scheduler,
                on_event=progress,
                loggers=options.loggers,
            )
    except KeyboardInterrupt:
        print(
            f"the run goes on; `daskxml stop {options.run} --scheduler {options.scheduler}` ends it"
        )
        return INTERRUPTED
    report(done, {"run": str(done.out or ""), "dashboard": progress.seen.dashboard})
    return 0
