"""The algorithms: one file each, pure state machines, named in a run file's ``[strategy]``."""

from __future__ import annotations

from typing import Any

from daskxml.strategies.adaptive_hogbatch import AdaptiveHogbatch
from daskxml.strategies.adaptive_sgd import AdaptiveSgd
from daskxml.strategies.adasum import AdasumSgd
from daskxml.strategies.asynchronous import AsynchronousSgd
from daskxml.strategies.crossbow import Crossbow
from daskxml.strategies.elastic import ElasticSgd
from daskxml.strategies.hogbatch import CpuGpuHogbatch, Hogbatch
from daskxml.strategies.mirrored import CentralSgd, MirroredSgd
from daskxml.strategies.static import StaticSgd

STRATEGIES: dict[str, Any] = {  # classes: a `Strategy` is made of the class's own `Config`
    "adaptive-sgd": AdaptiveSgd,
    "elastic": ElasticSgd,
    "mirrored": MirroredSgd,
    "central": CentralSgd,
    "asynchronous": AsynchronousSgd,
    "crossbow": Crossbow,
    "static": StaticSgd,
    "adasum": AdasumSgd,
    "hogbatch": Hogbatch,
    "cpu-gpu-hogbatch": CpuGpuHogbatch,
    "adaptive-hogbatch": AdaptiveHogbatch,
}

__all__ = ["STRATEGIES", "AdaptiveSgd"]
