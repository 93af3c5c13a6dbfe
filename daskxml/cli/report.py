"""``daskxml report``: write a page, pictures and tables about runs."""

from __future__ import annotations

import sys

from daskxml.cli.arguments import Options
from daskxml.cli.tables import print_lines
from daskxml.reports import write_report


def run(options: Options) -> int:
    """Write the report, and say where it is and what could not be read."""
    asked = {"metric": options.metric, "level": options.at, "pictures": not options.no_png}
    written = write_report(options.runs, options.out, **asked)
    for problem in written.problems:
        print(f"daskxml: {problem}", file=sys.stderr)
    if not (written.pictures or options.no_png):
        print("daskxml: no PNGs: pip install 'daskxml[report]' brings them", file=sys.stderr)
    places = {
        "page": str(written.page),
        "pictures": f"{len(written.pictures)} PNG files" if written.pictures else "",
        "tables": ", ".join(path.name for path in written.tables),
    }
    print_lines(places)
    return 0
