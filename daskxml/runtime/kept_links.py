"""Links that outlive their round, for the next one of the same endpoints.

To open a link takes a connection, Dask's handshake and one of our own: several messages in a row,
which for a small model take longer than the model. So merges of the same workers use them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from daskxml.runtime.link_protocol import InLink, Link, OutLink

Either = TypeVar("Either", bound=Link)


@dataclass(frozen=True, slots=True)
class Links:
    """An endpoint's open links, by the number of the other one."""

    inward: Mapping[int, InLink]
    outward: Mapping[int, OutLink]

    async def close(self) -> None:
        """Close them."""
        for link in (*self.inward.values(), *self.outward.values()):
            await link.close()


NONE = Links({}, {})


@dataclass(frozen=True, slots=True)
class Kept:
    """The links of a round that went well, by endpoint of this worker."""

    number: int
    links: Mapping[int, Links]

    async def close(self) -> None:
        """Close them."""
        for links in self.links.values():
            await links.close()


def slots_for(numbers: Iterable[int], links: Mapping[int, Either]) -> dict[int, Future[Either]]:
    """Return a place for each number's link: filled, where it is open already."""
    slots: dict[int, Future[Either]] = {number: Future() for number in numbers}
    for number, link in links.items():
        slots[number].set_result(link)
    return slots


def opened(slots: Mapping[int, Future[Either]]) -> dict[int, Either]:
    """Return the links of those places that are filled.

    Examples
    --------
    >>> slots = slots_for((1, 2, 3), {2: "a link"})
    >>> slots[3].cancel()
    True
    >>> opened(slots)
    {2: 'a link'}
    """
    done = {number: slot for number, slot in slots.items() if slot.done() and not slot.cancelled()}
    return {number: slot.result() for number, slot in done.items() if slot.exception() is None}


async def rest_or_close(links: Mapping[int, Either], keeps: bool) -> dict[int, Either]:
    """Return the links that rest until the next round, and close the others."""
    resting = {number: link for number, link in links.items() if keeps and link.rest()}
    for number in links.keys() - resting.keys():
        await links[number].close()
    return resting
