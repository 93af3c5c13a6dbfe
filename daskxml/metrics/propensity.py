"""Inverse propensities of labels, after Jain, Prabhu and Varma, KDD 2016.

The chance ``p`` that a true label was recorded at all is modelled from how often it was seen,
``1 / p = 1 + C * (n + b) ** -a`` with ``C = (log N - 1) * (b + 1) ** a``. The constants are a data
set's own: 0.55 and 1.5, but 0.6 and 2.6 for Amazon's sets and 0.5 and 0.4 for Wikipedia's.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from daskxml.errors import ConfigError


def propensities(
    label_counts: npt.NDArray[np.int64], rows: int, a: float = 0.55, b: float = 1.5
) -> npt.NDArray[np.float64]:
    """Inverse propensity of each label: what one hit of it counts in PSP@k and PSnDCG@k.

    Parameters
    ----------
    label_counts
        ``(labels,)``: in how many training rows each label occurs.
    rows
        Number of training rows. Below ``e`` rows the paper's ``C`` would be negative, and a rare
        label count less than a frequent one; ``C`` is 0 there, and every label counts 1.
    a, b
        The data set's constants, both positive.

    Returns
    -------
    ``(labels,)`` float64, at least 1.

    Raises
    ------
    ConfigError
        If a constant is not a positive number.

    Examples
    --------
    >>> propensities(np.array([0, 10, 1000]), rows=1000).round(2)
    array([8.82, 3.55, 1.22])
    """
    for name, value in (("propensity_a", a), ("propensity_b", b)):
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} = {value}: must be a positive number")
    scale = max(math.log(max(rows, 1)) - 1, 0.0) * (b + 1) ** a
    return 1.0 + scale * (np.asarray(label_counts, dtype=np.float64) + b) ** -a
