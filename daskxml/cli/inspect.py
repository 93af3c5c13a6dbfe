"""``daskxml inspect``: describe a data file and its problems."""

from __future__ import annotations

import json

from daskxml.cli.arguments import Options
from daskxml.data.inspection import inspect_file


def run(options: Options) -> int:
    """Print what was found as lines, or as one JSON object."""
    found = inspect_file(options.data)
    print(json.dumps(found.as_dict()) if options.json else "\n".join(found.lines()))
    return 0
