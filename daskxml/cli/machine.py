"""``daskxml doctor``: what is installed on this machine.

The doctor runs where packages are missing: only the standard library is imported at the top.
"""

from __future__ import annotations

import dataclasses
import json

from daskxml.cli.arguments import Options


def doctor(options: Options) -> int:
    """Print the report.

    Returns
    -------
    The exit status: 2 if there is a problem, else 0.
    """
    from daskxml.cli.doctor import examine

    report = examine()
    if options.json:
        found = [dataclasses.asdict(finding) for finding in report.findings]
        print(json.dumps({"problems": len(report.problems), "findings": found}))
    else:
        print(*report.lines(), sep="\n")
    return 2 if report.problems else 0
