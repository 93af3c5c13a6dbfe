"""``python -m daskxml``: the same as ``daskxml``."""

import sys

from daskxml.cli import main

sys.exit(main())
