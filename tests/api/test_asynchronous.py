"""An asynchronous client: refused with what to do, which works."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from distributed import Client

import daskxml

TREE: dict[str, Any] = {"model": {"kind": "trees"}, "training": {"trees": 1}}


def test_training_from_a_coroutine(client: Client) -> None:
    address, rows = client.scheduler.address, (np.eye(16), np.eye(16))

    async def train() -> daskxml.Run:
        async with Client(address, asynchronous=True, set_as_default=False) as own:
            with pytest.raises(daskxml.ConfigError, match=r"await asyncio\.to_thread"):
                daskxml.train(TREE, client=own, train=rows)
            given = {"scheduler": own.scheduler.address, "train": rows}
            return await asyncio.to_thread(daskxml.train, TREE, **given)

    assert asyncio.run(train()).model.spec.labels == 16


def test_a_pipeline_trains_the_default_run_file(client: Client) -> None:
    with daskxml.Pipeline(client=client) as pipe:
        rows = pipe.read(daskxml.Matrices(np.eye(16), np.eye(16)))
        assert pipe.train(rows=rows).result().model.spec.kind == "trees"
        with pytest.raises(daskxml.ConfigError, match="no training rows: give rows="):
            pipe.train()
