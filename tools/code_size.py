"""Count the package's lines of code and files, room by room.

A line of code holds a token that is neither a comment nor part of a docstring; blank lines do not
count. Compare two checkouts::

    python tools/code_size.py            # this one
    python tools/code_size.py OTHER      # another one, at its root
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of all docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_numbers(text: str) -> set[int]:
    """Return the numbers of the lines of code in a module's text, from 1."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(ast.parse(text))


def main(root: Path) -> None:
    """Print a table of rooms: lines of code, all lines, files."""
    rooms: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for path in sorted((root / "daskxml").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        room = path.relative_to(root / "daskxml").parts[0]
        rooms["(top)" if room.endswith(".py") else room].append(
            (len(code_numbers(text)), text.count("\n"))
        )
    print(f"{'room':<14}{'code':>8}{'lines':>8}{'files':>7}")
    every = [size for sizes in rooms.values() for size in sizes]
    for room, sizes in [*sorted(rooms.items()), ("all", every)]:
        code, lines = (sum(column) for column in zip(*sizes, strict=True))
        print(f"{room:<14}{code:>8,}{lines:>8,}{len(sizes):>7}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
