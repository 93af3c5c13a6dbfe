"""The examination: one topic after the other."""

from __future__ import annotations

from daskxml.doctor.devices import examine_gpus, examine_ucx
from daskxml.doctor.findings import Report
from daskxml.doctor.machine import examine_cores, examine_disk, examine_memory
from daskxml.doctor.packages import examine_dashboard, examine_packages, examine_python

TOPICS = (
    examine_python,
    examine_packages,
    examine_dashboard,
    examine_cores,
    examine_memory,
    examine_disk,
    examine_gpus,
    examine_ucx,
)


def examine() -> Report:
    """Look at this machine and its packages.

    Examples
    --------
    >>> report = examine()
    >>> report.findings[0].topic
    'Python'
    """
    return Report(tuple(finding for topic in TOPICS for finding in topic()))
