"""``daskxml stop``: end a run of a scheduler at a merge, with a checkpoint."""

from __future__ import annotations

from daskxml.cli.arguments import Options
from daskxml.cli.tables import print_lines


def run(options: Options) -> int:
    """Wait until the run is over; say where it is."""
    from daskxml.runtime.runs import stop

    over = stop(options.run, scheduler=options.scheduler, forget_it=options.forget)
    print_lines({"run": over.run, "state": over.state, "out": over.out})
    return 0
