"""Checkpoints: complete or not there, the newest few kept, damage told in one line."""

from __future__ import annotations

import numpy as np
import pytest

from daskxml.errors import ModelError
from daskxml.model.tensors import write_tensors
from daskxml.training.checkpoint import (
    checkpoints,
    latest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)

SESSION = {"strategy": {"x": 0.1}, "history": [{"rows": 3, "loss": 1 / 3}], "lease_count": 7}


def models(value=1.0):
    current = np.linspace(0, value, 50, dtype=np.float32)
    return {"current": current, "previous": current[::-1].copy()}


def refusal(path):
    with pytest.raises(ModelError) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_read(tmp_path):
    path = write_checkpoint(tmp_path, 12, models(), SESSION, keep=2)
    assert path == latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "000012.safetensors"
    read, session = read_checkpoint(path)
    assert session == SESSION
    for name, array in models().items():
        np.testing.assert_array_equal(read[name], array)


def test_only_the_newest_are_kept(tmp_path):
    for megabatch in (999_998, 999_999, 1_000_000, 1_000_001):
        write_checkpoint(tmp_path, megabatch, models(), SESSION, keep=3)
    names = [path.stem for path in checkpoints(tmp_path)]
    assert names == ["999999", "1000000", "1000001"]


def test_a_checkpoint_of_the_same_megabatch_is_replaced(tmp_path):
    write_checkpoint(tmp_path, 1, models(), SESSION, keep=2)
    path = write_checkpoint(tmp_path, 1, models(9.0), SESSION, keep=2)
    assert checkpoints(tmp_path) == [path]
    assert read_checkpoint(path)[0]["current"][-1] == 9.0


def test_no_checkpoint(tmp_path):
    assert checkpoints(tmp_path) == []
    with pytest.raises(ModelError, match="no checkpoint to resume from"):
        latest_checkpoint(tmp_path)


@pytest.mark.parametrize("kept_bytes", [0, 5, 100, -1])
def test_a_file_cut_off_is_refused(tmp_path, kept_bytes):
    path = write_checkpoint(tmp_path, 1, models(), SESSION, keep=2)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    refusal(path)


def test_a_flipped_bit_is_noticed(tmp_path):
    path = write_checkpoint(tmp_path, 1, models(), SESSION, keep=2)
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    assert "damaged" in refusal(path)


@pytest.mark.parametrize(
    ("arrays", "metadata"),
    [
        (models(), {"format": "0", "session": "{}"}),
        (models(), {"session": "{}"}),
        (models(), {"format": "1"}),
        (models(), {"format": "1", "session": "{"}),
        ({"current": np.zeros(3)}, {"format": "1", "session": "{}"}),
    ],
)
def test_another_version_is_refused(tmp_path, arrays, metadata):
    path = tmp_path / "000001.safetensors"
    write_tensors(path, arrays, metadata)
    assert "not a checkpoint of this version" in refusal(path)


def test_a_missing_file_and_a_place_that_cannot_be_written(tmp_path):
    refusal(tmp_path / "000001.safetensors")
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(ModelError, match="cannot be made"):
        write_checkpoint(tmp_path, 1, models(), SESSION, keep=2)
