"""An asynchronous client: calls that can be awaited, and others with what to do."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import daskxml

TREE: dict[str, Any] = {"model": {"kind": "trees"}, "training": {"trees": 1}}


def test_training_and_predicting_from_a_coroutine(client: Client, tmp_path: Path) -> None:
    address, rows = client.scheduler.address, (np.eye(16), np.eye(16))
    file, out = tmp_path / "rows.txt", tmp_path / "out.csv"
    file.write_text("".join(f"{row} {row}:1\n" for row in range(16)))

    async def work() -> tuple[daskxml.Run, Any]:
        async with Client(address, asynchronous=True, set_as_default=False) as own:
            training: Any = daskxml.train(TREE, client=own, train=rows)
            run = await training
            ranking: Any = daskxml.predict(run.model, str(file), k=1, out=out, client=own)
            done = await ranking
            with pytest.raises(daskxml.ConfigError, match=r"await asyncio\.to_thread"):
                daskxml.attach("a run", client=own)
            return run, done

    run, done = asyncio.run(work())
    assert run.model.spec.labels == 16
    assert done.rows == 16


def test_a_pipeline_trains_the_default_run_file(client: Client) -> None:
    with daskxml.Pipeline(client=client) as pipe:
        rows = pipe.read(daskxml.Matrices(np.eye(16), np.eye(16)))
        assert pipe.train(rows=rows).result().model.spec.kind == "trees"
        with pytest.raises(daskxml.ConfigError, match="no training rows: give rows="):
            pipe.train()
