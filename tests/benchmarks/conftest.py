"""The figures' modules, which are scripts beside each other and no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks" / "figures"))
