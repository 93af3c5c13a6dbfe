"""Which workers have which part of a model that no worker has whole, as far as losses matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def buddies(hosts: Sequence[str]) -> dict[int, int]:
    """Return which worker keeps a copy for which: the next one on another machine, or the next.

    Examples
    --------
    >>> buddies(["x", "x", "y"]), buddies(["x", "x"]), buddies(["x"])
    ({0: 2, 1: 2, 2: 0}, {0: 1, 1: 0}, {})
    """
    found, workers = {}, len(hosts)
    for worker, host in enumerate(hosts):
        others = [(worker + turn) % workers for turn in range(1, workers)]
        if others:
            found[worker] = next((o for o in others if hosts[o] != host), others[0])
    return found


class PartHolders:
    """The workers that have each part of the last merge, or the model that the run begins with.

    Examples
    --------
    >>> parts = PartHolders(["a", "b", "c"])
    >>> parts.begin_gang(["a", "b", "c"])
    >>> parts.merged({"a": "x", "b": "x", "c": "x"})
    >>> parts.lose("b"), parts.misses_owner, parts.lose("c")
    (False, True, True)
    """

    def __init__(self, founders: Iterable[str]) -> None:
        self._parts = [set(founders)]
        self._gang: tuple[str, ...] = ()
        self.misses_owner = False

    def begin_gang(self, workers: Iterable[str]) -> None:
        """Note who has parts from now on."""
        self._gang = tuple(workers)

    def merged(self, hosts: Mapping[str, str]) -> None:
        """Note that every worker of the last gang, which is on its host, has given a copy away."""
        copies = buddies([hosts.get(name, "") for name in self._gang])
        self._parts = [
            {name, self._gang[copies[part]]} if part in copies else {name}
            for part, name in enumerate(self._gang)
        ]
        self.misses_owner = False

    def lose(self, worker: str) -> bool:
        """Note a loss; return whether a part is lost with it."""
        self.misses_owner = self.misses_owner or worker in self._gang
        for part in self._parts:
            part.discard(worker)
        return not all(self._parts)
