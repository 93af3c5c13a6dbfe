"""A run's driver, without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from daskxml.cluster.run_driver import RunDriver
from daskxml.cluster.worker_info import Capabilities, WorkerInfo
from daskxml.config import load_run_config


class Part:
    """What a session has to close."""

    def __init__(self) -> None:
        self.may_close, self.is_closed = asyncio.Event(), False

    async def close(self) -> None:
        """Close, as soon as it may."""
        await self.may_close.wait()
        self.is_closed = True


def new_driver() -> Any:
    """A driver without a client."""
    client: Any = None
    config = load_run_config({"training": {"epochs": 1}})
    return RunDriver(client, "run", config, {})


def test_who_comes_to_a_lost_workers_address_is_asked_what_it_has() -> None:
    """It may have another version, or no GPU."""
    driver, info = new_driver(), WorkerInfo("0", "tcp://h:1")
    driver.worker_added(info)
    driver.group.capabilities[info.address] = Capabilities()
    driver.worker_removed(info.address)
    assert driver.group.capabilities == {}


def test_a_run_that_is_forgotten_while_it_closes_a_session_closes_all_of_it() -> None:
    async def forget() -> list[bool]:
        driver = new_driver()
        first, second = driver.membership, driver.executor = Part(), Part()
        second.may_close.set()
        closing = asyncio.ensure_future(driver._remove_from_workers())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        first.may_close.set()
        await driver._remove_from_workers()
        return [first.is_closed, second.is_closed]

    assert asyncio.run(forget()) == [True, True]
