"""``daskxml inspect``: data files and their problems, or what is installed on this machine.

It runs where packages are missing: only the standard library is imported at the top.
"""

from __future__ import annotations

import dataclasses
import json

from daskxml.cli.arguments import Options


def inspect(options: Options) -> int:
    """Describe data files, or this machine where there are none, as lines or one JSON object.

    Returns
    -------
    The exit status: 2 if the machine has a problem, else 0.
    """
    if options.data:
        from daskxml.data.inspection import inspect_file

        names = (options.feature_names or (), options.label_names or ())
        found = inspect_file(options.data, feature_names=names[0], label_names=names[1])
        print(json.dumps(dataclasses.asdict(found)) if options.json else "\n".join(found.lines()))
        return 0
    from daskxml.cli.examination import examine

    report = examine()
    if options.json:
        findings = [dataclasses.asdict(finding) for finding in report.findings]
        print(json.dumps({"problems": len(report.problems), "findings": findings}))
    else:
        print(*report.lines(), sep="\n")
    return 2 if report.problems else 0
