"""A small data set on disk, for the tests of several folders: their conftest imports `data`."""

from __future__ import annotations

from pathlib import Path

import pytest

from daskxml.data.synthetic import SyntheticSpec, write_xml

SPEC = SyntheticSpec(rows=1500, test_rows=200, features=300, labels=60, seed=5)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Training and test files."""
    folder = tmp_path_factory.mktemp("data")
    return {part: write_xml(folder / f"{part}.txt", SPEC, part) for part in ("train", "test")}
