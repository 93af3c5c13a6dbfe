"""In which order vectors are combined in pairs: binary trees whose leaves are ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Join:
    """Two parts of a tree become one: by Adasum where it ``adapts``, else by addition."""

    left: Tree
    right: Tree
    adapts: bool = True


Tree: TypeAlias = int | Join


def balanced(parts: Sequence[Tree], adapts: bool = True) -> Tree:
    """Join neighbours, then pairs of neighbours; one that is left over joins the next level.

    Examples
    --------
    >>> balanced((0, 1, 2))
    Join(left=Join(left=0, right=1, adapts=True), right=2, adapts=True)
    """
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        joined: list[Tree] = [Join(left, right, adapts) for left, right in pairs]
        parts = [*joined, *(parts[-1:] if len(parts) % 2 else [])]
    return parts[0]


def chain(parts: Sequence[Tree], adapts: bool = True) -> Tree:
    """Join the first with the second, what comes of it with the third, and so on.

    Examples
    --------
    >>> chain((0, 1, 2)).left
    Join(left=0, right=1, adapts=True)
    """
    tree = parts[0]
    for part in parts[1:]:
        tree = Join(tree, part, adapts)
    return tree


def ranks_of(tree: Tree) -> tuple[int, ...]:
    """Return the leaves from left to right.

    Examples
    --------
    >>> ranks_of(Join(Join(0, 1), 2))
    (0, 1, 2)
    """
    if not isinstance(tree, Join):
        return (tree,)
    return ranks_of(tree.left) + ranks_of(tree.right)
