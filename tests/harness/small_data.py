"""Small data for the tests of several folders: a set on disk, whose `data` a conftest imports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskxml.core.arrays import Csr
from daskxml.data.parse import parse_bytes
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, write_xml

SPEC = SyntheticSpec(rows=1500, test_rows=200, features=300, labels=60, seed=5)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Training and test files."""
    folder = tmp_path_factory.mktemp("data")
    return {part: write_xml(folder / f"{part}.txt", SPEC, part) for part in ("train", "test")}


FEW = SyntheticSpec(rows=400, test_rows=80, features=80, labels=20, seed=3)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of fewer rows."""
    folder = tmp_path_factory.mktemp("few")
    return {part: write_xml(folder / f"{part}.txt", FEW, part) for part in ("train", "test")}


def small_run(megabatches: int, strategy: str = "adaptive-sgd", **sections: Any) -> dict[str, Any]:
    """Return the sections of a run file whose mega-batches have 384 rows."""
    return {
        "model": {"hidden": [16]},
        "strategy": {"name": strategy, "batch_max": 32, "megabatch_batches": 12, "lr": 0.5},
        "training": {"megabatches": megabatches},
        **sections,
    }


def random_rows(
    rng: np.random.Generator, rows: int, columns: int, most: int, *, ones: bool = False
) -> Csr:
    """Rows of up to ``most`` entries each, all of them 1 or between 0 and 1."""
    counts = rng.integers(0, most + 1, rows)
    ids = [np.sort(rng.choice(columns, count, replace=False)) for count in counts]
    indices = np.concatenate(ids).astype(np.int32)
    values = None if ones else rng.random(len(indices), dtype=np.float32)
    return Csr(np.append(0, np.cumsum(counts)), indices, values, columns)


def matrices(path, spec):
    """Return X and Y of the test rows of a generated file, in the full widths."""
    part = parse_bytes(path.read_bytes().split(b"\n", 1)[1]).partition
    X, Y = to_scipy(part.features), to_scipy(part.labels)
    X.resize(spec.test_rows, spec.features)
    Y.resize(spec.test_rows, spec.labels)
    return X, Y
