"""A run repeated from its history alone, in one process, as slowly and plainly as possible.

What comes out must be the model that the cluster made: so every row that the history lists was
counted in it, and none that it does not list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.config import load_run_config
from daskxml.data import shuffle
from daskxml.data.blocks import plan_blocks, read_header
from daskxml.data.faults import Dialect
from daskxml.data.parse import parse_block
from daskxml.strategies import STRATEGIES
from daskxml.training.ledger import Span, cut_batches
from daskxml.training.member import Member, MemberSettings
from daskxml.types import Partition

History = Sequence[Mapping[str, Any]]


def rows_of(history: History, total_rows: int) -> list[int]:
    """Every row that was merged, as its place in the endless sequence of epochs."""
    return [
        epoch * total_rows + place
        for row in history
        for worker in row["workers"].values()
        for lease in worker["leases"]
        for epoch, _, start, stop in lease
        for place in range(start, stop)
    ]


def check_ledger(history: History, total_rows: int) -> None:
    """Each mega-batch's rows follow the last one's, each once, and the counts agree."""
    before = 0
    for row in history:
        counted = sorted(rows_of([row], total_rows))
        assert counted == list(range(before, row["rows"])), f"mega-batch {row['megabatch']}"
        for worker in row["workers"].values():
            assert worker["rows"] == sum(s[3] - s[2] for lease in worker["leases"] for s in lease)
        before = row["rows"]


def shuffled_rows(path: Path, seed: int) -> Partition:
    """All training rows in their shuffled order."""
    header = read_header(str(path))
    assert header is not None
    dialect = Dialect(features=header.features, labels=header.labels)
    (block,) = plan_blocks([str(path)], 2**30)
    recipe = shuffle.Recipe(
        rows=header.rows,
        parts=1,
        shuffle_key=shuffle.shuffle_key(seed),
        features=header.features,
        labels=header.labels,
        shift=0,
        normalize="l2",
    )
    return shuffle.join_pieces(
        shuffle.split_block(parse_block(block, dialect), 0, recipe), 0, recipe
    )


def replayed_model(path: Path, values: Mapping[str, Any], history: History) -> Any:
    """Return the flat model that the history leads to."""
    config = load_run_config(values)
    rows = shuffled_rows(path, config.run.seed)
    member = _member(config, rows)
    current = np.array(member.current)
    previous = current.copy()
    for row in history:
        merged = np.zeros(current.shape, dtype=np.float64)
        for worker in row["workers"].values():
            member.set_model(current, previous, 0)
            for lease in worker["leases"]:
                batches = cut_batches([Span(*span) for span in lease], worker["batch_rows"])
                member.lease(batches, worker["lr"], {})
            merged += worker["weight"] * member.replica.flat.astype(np.float64)
        merged += config.strategy.momentum * (current.astype(np.float64) - previous)
        current, previous = merged.astype(np.float32), current
    return current


def _member(config: Any, rows: Partition) -> Member:
    strategy = STRATEGIES[config.strategy_name](config.strategy)
    member = Member(
        MemberSettings(
            spec=config.model_spec(rows.features.columns, rows.labels.columns),
            optimizer=config.optimizer,
            seed=config.run.seed,
            max_batch_rows=strategy.max_batch_rows(),
            logits_budget_bytes=2**28,
            evaluation_rows=512,
            ks=config.evaluation.k,
            propensity_a=0.55,
            propensity_b=1.5,
            training_rows=rows.rows,
            row_nonzeros=10,
            device="cpu",
            threads=1,
        )
    )
    member.initialize()
    member.hold_all([rows], [])
    return member
