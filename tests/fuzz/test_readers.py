"""A short run of the fuzzer; ``python -m fuzz.readers`` makes long ones."""

from pathlib import Path

import pytest

from fuzz.readers import READERS, fuzz, write_good_run

INPUTS = 25


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    write_good_run(folder)
    return folder


@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_read_or_refused(name: str, run: Path) -> None:
    refused = fuzz(READERS[name], INPUTS, 0, run)
    if name not in ("environment", "report"):  # which read what they can
        assert refused > 0
