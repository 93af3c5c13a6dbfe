"""The k best labels of dense scores: the plain definition that faster selections are held to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from daskxml.errors import ConfigError


def top_k_dense(
    scores: npt.NDArray[np.floating], k: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Select the ``k`` highest scores of each row, best first, the lowest id first among equals.

    Parameters
    ----------
    scores
        ``(rows, labels)``, without NaN.
    k
        How many, at least 1.

    Returns
    -------
    ids
        ``(rows, k)`` int32; -1 where ``k`` exceeds the number of labels.
    best
        ``(rows, k)`` float32; minus infinity where the id is -1.

    Raises
    ------
    ConfigError
        If ``k`` is below 1.

    Examples
    --------
    >>> ids, best = top_k_dense(np.array([[0.1, 0.7, 0.7]]), k=4)
    >>> ids
    array([[ 1,  2,  0, -1]], dtype=int32)
    """
    if k < 1:
        raise ConfigError(f"k = {k}: must be at least 1")
    rows, labels = scores.shape
    found = min(k, labels)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :found]
    ids = np.full((rows, k), -1, dtype=np.int32)
    best = np.full((rows, k), -np.inf, dtype=np.float32)
    ids[:, :found] = order
    best[:, :found] = np.take_along_axis(scores, order, axis=1)
    return ids, best
