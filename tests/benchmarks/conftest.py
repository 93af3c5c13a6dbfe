"""The modules of the benchmarks, which are scripts beside each other and no package."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent / "benchmarks"
FOLDERS = ("gpu", "papers", "quality", "speed")
sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in FOLDERS)]
