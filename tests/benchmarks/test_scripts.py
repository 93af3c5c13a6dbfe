"""Scripts of benchmarks import what the package has."""

import ast
import importlib
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))


def test_what_scripts_import_of_the_package_exists():
    missing = {path: found for path in SCRIPTS if (found := missing_names(path))}
    assert missing == {}


def missing_names(path):
    """Return what a script imports of the package that is not there."""
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("daskxml"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    try:
                        importlib.import_module(f"{node.module}.{alias.name}")
                    except ImportError:
                        missing.append(f"{node.module}.{alias.name}")
    return missing
