"""How an endpoint of a round calls another one, and answers: a handshake, which a link comes of.

Where both are on one machine, the caller offers a pipe, in which it says where its arrays are. If
the other end can open that, they share memory; if not, as another user or in another container, a
socket joins them as it joins machines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distributed.comm import Comm, connect, get_address_host

from daskxml.errors import ConfigError
from daskxml.runtime.link_protocol import InLink, OutLink
from daskxml.runtime.links import open_in, open_out
from daskxml.runtime.mailbox import Caller, Mailbox, RoundKey
from daskxml.runtime.mappings import Mappings
from daskxml.runtime.shared_arrays import can_share
from daskxml.runtime.token_pipe import TokenPipe, open_offered

HANDLER = "daskxml_round"
READY = "ready"


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long an endpoint waits for another one.

    Attributes
    ----------
    connect_s
        To reach its worker, in seconds.
    idle_s
        For it to begin the round, and then for its next message, in seconds.
    """

    connect_s: float = 5.0
    idle_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "idle_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which endpoint of which round, and how to reach the others.

    ``addresses`` has the worker of every endpoint; callers come through the mailbox. With
    ``shares_memory`` processes of one machine read each other's arrays where they lie, by way of
    the mappings. With ``keeps_links`` the round leaves its links open if it goes well.
    """

    key: RoundKey
    number: int
    addresses: tuple[str, ...]
    mailbox: Mailbox
    mappings: Mappings
    connection_args: Mapping[str, Any]
    patience: Patience
    shares_memory: bool = True
    keeps_links: bool = False

    def shares_with(self, number: int) -> bool:
        """Whether another endpoint may be told where this one's arrays are."""
        here, there = self.addresses[self.number], self.addresses[number]
        is_near = get_address_host(here) == get_address_host(there)
        return self.shares_memory and is_near and there.startswith("tcp://") and can_share()


async def dial(place: Place, number: int) -> OutLink:
    """Call another endpoint, and return the link to it."""
    comm = await connect(
        place.addresses[number], timeout=place.patience.connect_s, **place.connection_args
    )
    pipe = TokenPipe() if place.shares_with(number) else None
    try:
        call = _call(place, comm, number, pipe)
        return await asyncio.wait_for(call, place.patience.idle_s)
    except BaseException:
        comm.abort()
        if pipe is not None:
            pipe.close()
        raise


async def _call(place: Place, comm: Comm, number: int, pipe: TokenPipe | None) -> OutLink:
    key, ends = place.key, {"caller": place.number, "callee": number}
    call = {"op": HANDLER, "reply": False, "run": key.run, "number": key.number}
    await comm.write(call | ends | {"pipe": None if pipe is None else pipe.offer})
    answer = await comm.read()
    if answer["status"] != READY:
        raise ConnectionRefusedError("it has left this round")
    if pipe is not None and not answer["shares"]:
        pipe.close()
        pipe = None
    return await open_out(comm, place.patience.idle_s, pipe)


async def answer(caller: Caller, patience_s: float, mappings: Mappings) -> InLink:
    """Tell a caller to begin, and return the link from it."""
    pipe_fd = None if caller.pipe is None else open_offered(caller.pipe)
    try:
        await caller.comm.write({"status": READY, "shares": pipe_fd is not None})
        return await open_in(caller.comm, patience_s, pipe_fd, mappings)
    except BaseException:
        if pipe_fd is not None:
            os.close(pipe_fd)
        raise
