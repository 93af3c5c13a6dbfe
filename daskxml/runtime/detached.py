"""A run that nobody follows: it writes its own record, and keeps its model when it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from daskxml.config import RunConfig
from daskxml.runtime import keeping
from daskxml.runtime.crew import Crew
from daskxml.runtime.hand import Hand
from daskxml.runtime.journal import Journal
from daskxml.runtime.machines import Arrival
from daskxml.runtime.scribe import Scribe

KEEPERS = 2  # workers that keep the model of a run without a directory


class Detached:
    """What a run has in the place of a client.

    Parameters
    ----------
    crew, journal, config, run_dir, checkpoint, arrivals, failed
        See `daskxml.runtime.scribe.Scribe`; a run without a directory has its model kept by
        workers instead.
    """

    def __init__(
        self,
        crew: Crew,
        journal: Journal,
        config: RunConfig,
        run_dir: str | None,
        checkpoint: str | None,
        arrivals: Callable[[], Sequence[Arrival]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._crew = crew
        self._scribe: Scribe | None = None
        if run_dir is not None:
            self._scribe = Scribe(crew, journal, config, run_dir, checkpoint, arrivals, failed)
        self._keepers: list[Hand] = []

    def worker_removed(self, address: str) -> None:
        """Hear that a worker is gone."""
        if self._scribe is not None:
            self._scribe.worker_removed(address)
        for keeper in self._keepers:
            if keeper.address == address:
                keeper.lost.set()

    async def open(self) -> None:
        """Take the directory.

        Raises
        ------
        ModelError, ClusterError
            If that cannot be done.
        """
        if self._scribe is not None:
            await self._scribe.open()

    def begin(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Write down what happens from now on; ``history`` is that of a run that goes on."""
        if self._scribe is not None:
            self._scribe.write_on(history)

    async def end(self, has_failed: bool) -> None:
        """Write what is left to write; have the model kept while there are members."""
        if self._scribe is not None:
            await self._scribe.close(has_failed)
        elif not has_failed and not self._keepers:
            hands = list(self._crew.hands.values())[:KEEPERS]
            answers = await self._crew.ask_all(hands, "model", keeping.keep_model, self._crew.run)
            self._keepers = [hand for hand in hands if answers[hand.name] is None]

    def cancel(self) -> None:
        """Do nothing more: the scheduler ends."""
        if self._scribe is not None:
            self._scribe.cancel()

    @property
    def keepers(self) -> list[Hand]:
        """The workers that keep the model, once the run is over."""
        return [hand for hand in self._keepers if not hand.is_lost]

    async def forget(self) -> None:
        """Let workers keep nothing more."""
        await self._crew.ask_all(self.keepers, "end", keeping.drop_model, self._crew.run)
        self._keepers = []
