"""What is installed on this machine, what is missing or clashes, and the commands that fix it.

It runs wherever Python does: only the standard library is imported at the top of a module.
"""

from daskxml.cli.doctor.findings import Report
from daskxml.cli.doctor.machine import (
    examine_cores,
    examine_disk,
    examine_gpus,
    examine_memory,
    examine_ucx,
)
from daskxml.cli.doctor.packages import examine_dashboard, examine_packages, examine_python

__all__ = ["examine"]

_TOPICS = (
    examine_python, examine_packages, examine_dashboard, examine_cores,
    examine_memory, examine_disk, examine_gpus, examine_ucx,
)  # fmt: skip


def examine() -> Report:
    """Examine this machine and its packages.

    Examples
    --------
    >>> examine().findings[0].topic
    'Python'
    """
    return Report(tuple(finding for topic in _TOPICS for finding in topic()))
