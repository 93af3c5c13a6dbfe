"""How requests are gathered, with a model whose calls can be held up."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from daskxml.cli.batches import Batches, BusyError, ServedModel
from daskxml.core.errors import ConfigError
from daskxml.models.network.spec import ModelSpec
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model


class Held(Model):
    """A model whose calls wait until they are let go."""

    def __init__(self) -> None:
        spec = ModelSpec(features=3, labels=4, hidden=())
        weights = {"output.weight": np.eye(4, 3, dtype=np.float32), "output.bias": np.zeros(4, "f")}
        super().__init__(
            ModelHeader(spec=spec, training_rows=9), weights, np.ones(4, int), threads=1
        )
        self.calls: list[tuple[int, int]] = []
        self.go = threading.Semaphore(0)

    def predict_top_k(self, X: Any, k: int = 5) -> Any:
        self.calls.append((X.shape[0], k))
        assert self.go.acquire(timeout=30)
        return super().predict_top_k(X, k)


def gather(requests: list[tuple[int, int]], calls: int, **options: Any) -> tuple[Held, list[Any]]:
    """Ask for ``(rows, k)`` at the same time; return the model and each answer or error."""
    model = Held()
    served = ServedModel(model, "", {})
    given = {"workers": 1, "most_rows": 8, "most_waiting": 20, **options}

    async def run() -> list[Any]:
        sizes: list[int] = []
        batches = Batches(**given, on_batch=sizes.append)
        first = asyncio.ensure_future(batches.rank(served, rows(1), 1))
        while not model.calls:
            await asyncio.sleep(0.001)
        asked = [batches.rank(served, rows(count), k) for count, k in requests]
        gathered = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(0.05)
        model.go.release(1 + calls)
        await first
        found = await gathered
        assert sum(sizes) == sum(count for count, _ in model.calls)
        batches.close()
        return found

    return model, asyncio.run(run())


def rows(count: int) -> sp.csr_matrix:
    return sp.csr_matrix(np.arange(1, 3 * count + 1, dtype=np.float32).reshape(count, 3))


def test_what_comes_while_the_worker_is_busy_is_one_call() -> None:
    model, found = gather([(1, 2), (3, 2), (2, 2)], calls=1)
    assert model.calls == [(1, 1), (6, 2)]
    for (ids, scores), count in zip(found, (1, 3, 2), strict=True):
        model.go.release()
        expected = model.predict_top_k(rows(count), 2)
        np.testing.assert_array_equal(ids, expected[0])
        np.testing.assert_allclose(scores, expected[1], rtol=1e-6)


def test_few_rows_are_ranked_one_at_a_time() -> None:
    model, found = gather([(1, 2), (2, 2)], calls=3)
    assert model.calls == [(1, 1), (1, 2), (1, 2), (1, 2)]
    model.go.release(3)
    for (ids, scores), count in zip(found, (1, 2), strict=True):
        alone = [model.predict_top_k(rows(count)[i], 2) for i in range(count)]
        np.testing.assert_array_equal(ids, np.concatenate([ids for ids, _ in alone]))
        np.testing.assert_array_equal(scores, np.concatenate([best for _, best in alone]))


def test_other_numbers_of_labels_are_other_calls() -> None:
    model, found = gather([(3, 2), (1, 3), (2, 2)], calls=2)
    assert sorted(model.calls[1:]) == [(1, 3), (5, 2)]
    assert [ids.shape[1] for ids, _ in found] == [2, 3, 2]


def test_a_call_has_at_most_so_many_rows() -> None:
    model, _ = gather([(3, 2), (3, 2), (3, 2), (1, 2)], calls=2)
    assert sorted(model.calls[1:]) == [(4, 2), (6, 2)]


def test_more_rows_than_may_wait() -> None:
    _, found = gather([(10, 2), (9, 2), (1, 2)], calls=2, most_rows=100)
    assert [isinstance(answer, BusyError) for answer in found] == [False, False, True]


def test_an_error_is_everybodys() -> None:
    _, found = gather([(3, 10**9), (2, 10**9), (1, 2)], calls=2)
    assert [isinstance(answer, ConfigError) for answer in found] == [True, True, False]


def test_a_client_that_goes_is_left_out() -> None:
    model = Held()
    served = ServedModel(model, "", {})

    async def run() -> Any:
        batches = Batches(workers=1, most_rows=8, most_waiting=20, on_batch=lambda _: None)
        gone = asyncio.ensure_future(batches.rank(served, rows(1), 2))
        stays = asyncio.ensure_future(batches.rank(served, rows(4), 2))
        while not model.calls:
            await asyncio.sleep(0.001)
        gone.cancel()
        model.go.release()
        found = await stays
        with pytest.raises(asyncio.CancelledError):
            await gone
        batches.close()
        return found

    assert asyncio.run(run())[0].shape == (4, 2)
