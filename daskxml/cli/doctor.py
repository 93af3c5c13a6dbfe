"""``daskxml doctor``: what is installed here, what is missing or clashes, and what mends it."""

from __future__ import annotations

import dataclasses
import json

from daskxml.cli.arguments import Options
from daskxml.doctor import examine

PROBLEMS = 2


def run(options: Options) -> int:
    """Print the report; return 2 if something must be mended."""
    report = examine()
    if options.json:
        found = [dataclasses.asdict(finding) for finding in report.findings]
        print(json.dumps({"problems": len(report.problems), "findings": found}))
    else:
        print(*report.lines(), sep="\n")
    return PROBLEMS if report.problems else 0
