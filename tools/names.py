"""List the names of the package: modules, classes with their public methods, public functions.

For reading them once more from top to bottom, or to compare two checkouts::

    python tools/names.py            # this one
    python tools/names.py OTHER      # another one, at its root
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yield a line for each public class and function of a module."""
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = [n.name for n in node.body if isinstance(n, FUNCTIONS)]
            public = [name for name in methods if not name.startswith("_")]
            yield node.name + (f": {', '.join(public)}" if public else "")


def main(root: Path) -> None:
    """Print the modules of a checkout, each with its names."""
    for path in sorted((root / "daskxml").rglob("*.py")):
        print(path.relative_to(root).with_suffix("").as_posix().replace("/", "."))
        for line in names_in(ast.parse(path.read_text(encoding="utf-8"))):
            print(f"    {line}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
