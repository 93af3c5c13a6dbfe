"""Gradients as sums of rows, against the same gradient materialized."""

import numpy as np
import pytest

from daskxml.kernels import get_kernels
from daskxml.kernels.operands import RowSums
from daskxml.optim import OptimizerConfig
from daskxml.optim.optimizer import GradientBuffer, Optimizer


def make_case(count, width, rows=5, entries=20_000):
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.integers(0, entries + 1, count - 1))
    starts = np.concatenate([[0], cuts, [entries]]).astype(np.int64)
    sums = RowSums(
        rng.permutation(count + 9)[:count].astype(np.int32), starts,
        rng.integers(0, rows, entries).astype(np.int32),
        rng.standard_normal(entries).astype(np.float32),
    )  # fmt: skip
    x = rng.standard_normal((rows, width)).astype(np.float32)
    whole = np.zeros((count + 9, width), np.float32)
    for i, row in enumerate(sums.ids):
        span = slice(starts[i], starts[i + 1])
        whole[row] = sums.values[span] @ x[sums.rows[span]]
    return sums, x, whole


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam"])
@pytest.mark.parametrize("threads", [1, 3])
def test_many_chunks_change_their_rows_once(name, threads):
    sums, x, whole = make_case(count=4000, width=70)
    kernels, size = get_kernels("cpu", threads), whole.size
    flats = [kernels.zeros(size), kernels.zeros(size)]

    def views(flat):
        return {"w": flat.reshape(whole.shape)}

    for flat, by_sums in zip(flats, (True, False), strict=True):
        config = OptimizerConfig(name=name, epsilon=1e-2)
        optimizer = Optimizer(config, kernels, views(flat), views, size)
        for _ in range(2):
            optimizer.begin_step()
            if by_sums:
                optimizer.subset_sums("w", sums, x, 0.1)
            else:
                optimizer.subset("w", sums.ids, whole[sums.ids], 0.1)
            optimizer.end_step(0.1)
    kernels.close()
    np.testing.assert_allclose(*flats, atol=1e-4)
    others = np.setdiff1d(np.arange(len(whole)), sums.ids)
    assert not flats[0].reshape(whole.shape)[others].any()


@pytest.mark.parametrize("width", [1, 70])
def test_gradients_are_collected_in_chunks(width):
    sums, x, whole = make_case(count=4000, width=width)
    kernels = get_kernels("cpu", 1)
    arrays = GradientBuffer(kernels, whole.size, lambda flat: {"w": flat.reshape(whole.shape)})
    for _ in range(2):
        arrays.subset_sums("w", sums, x, -1.0)
    np.testing.assert_allclose(arrays.views["w"], 2 * whole, atol=1e-4)
