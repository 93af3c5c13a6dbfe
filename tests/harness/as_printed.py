"""Algorithms 1 and 2 by the text of the paper, and a record recomputed by them.

Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous Multi-GPU
Servers", 2021. Nothing here is of the package.
"""

import numpy as np
import pytest


def algorithm_1(b, u, b_min, b_max, beta):
    mean = sum(u) / len(u)
    for i, count in enumerate(u):
        size = b[i] + beta * (count - mean)
        if (count > mean and size <= b_max) or (count < mean and size >= b_min):
            b[i] = size
    return b


def algorithm_2(b, u, norms, parameters, pert_thr, delta):
    is_equal = all(count == u[0] for count in u)
    alpha = [x / sum(b if is_equal else u) for x in (b if is_equal else u)]
    if all(norm / parameters < pert_thr for norm in norms):
        r, s = u.index(max(u)), u.index(min(u))
        alpha[r] *= 1 + delta
        alpha[s] *= 1 - delta
    return alpha


def recompute(history, *, parameters, b_min, b_max, beta, pert_thr, delta):
    """Check every weight and size of a history; return in how many merges updates differ."""
    names = [*history[0]["workers"]]
    sizes, unequal = [float(b_max)] * len(names), 0
    for row in history:
        workers = [row["workers"][name] for name in names]
        u, norms = ([worker[key] for worker in workers] for key in ("counted", "norm"))
        assert u == [worker["updates"] for worker in workers]
        assert [worker["batch_size"] for worker in workers] == pytest.approx(sizes, rel=1e-12)
        alpha = algorithm_2(sizes, u, norms, parameters, pert_thr, delta)
        np.testing.assert_allclose([worker["weight"] for worker in workers], alpha, rtol=1e-12)
        unequal += len(set(u)) > 1
        sizes = algorithm_1(sizes, u, b_min, b_max, beta)
    return unequal
