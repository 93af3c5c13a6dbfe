"""Scripts of benchmarks import what the package has."""

import ast
import importlib
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))


def test_what_scripts_import_of_the_package_exists():
    missing = {path: found for path in SCRIPTS if (found := missing_names(path))}
    assert missing == {}


def test_scripts_find_the_modules_beside_their_folder():
    texts = {path: path.read_text() for path in SCRIPTS}
    using = {path: text for path, text in texts.items() if "from machine import" in text}
    assert len(using) > 10
    assert not [p for p, text in using.items() if "sys.path" not in text.split("from machine")[0]]


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
