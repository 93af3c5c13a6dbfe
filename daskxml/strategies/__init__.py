"""The algorithms: one file each, pure state machines, named in a run file's ``[strategy]``."""

from __future__ import annotations

from daskxml.strategies.adaptive_sgd import AdaptiveSgd

STRATEGIES = {"adaptive-sgd": AdaptiveSgd}

__all__ = ["STRATEGIES", "AdaptiveSgd"]
