"""``python -m daskxml.cli``: the same as ``daskxml``."""

import sys

from daskxml.cli.main import main

sys.exit(main())
