"""Checkpoints: complete or not there, the newest few kept, damage told in one line."""

import json

import numpy as np
import pytest

from daskxml.core.errors import ModelError
from daskxml.models.tensors import write_tensors
from daskxml.records.checkpoint import (
    checkpoints,
    drop_local,
    latest_checkpoint,
    read_checkpoint,
    read_local,
    store_member,
    write_checkpoint,
    write_local,
)

SESSION = {
    "strategy": {"x": 0.1},
    "ledger": {},
    "history": [{"rows": 3, "loss": 1 / 3}],
    "lease_count": 7,
}
TEXT = json.dumps(SESSION)


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
    path = write_checkpoint(tmp_path, 12, models(), TEXT, keep=2)
    assert path == latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "000012.safetensors"
    read, session = read_checkpoint(path)
    assert session == SESSION
    for name, array in models().items():
        np.testing.assert_array_equal(read[name], array)


def test_only_the_newest_are_kept(tmp_path):
    for megabatch in (999_998, 999_999, 1_000_000, 1_000_001):
        write_checkpoint(tmp_path, megabatch, models(), TEXT, keep=3)
    names = [path.stem for path in checkpoints(tmp_path)]
    assert names == ["999999", "1000000", "1000001"]


def test_a_checkpoint_of_the_same_megabatch_is_replaced(tmp_path):
    write_checkpoint(tmp_path, 1, models(), TEXT, keep=2)
    path = write_checkpoint(tmp_path, 1, models(9.0), TEXT, keep=2)
    assert checkpoints(tmp_path) == [path]
    assert read_checkpoint(path)[0]["current"][-1] == 9.0


def test_checkpoints_of_a_history_that_was_given_up_go(tmp_path):
    """A run that has gone back writes fewer mega-batches: it is resumed from those."""
    for megabatch in (2, 5, 6):
        write_checkpoint(tmp_path, megabatch, models(), TEXT, keep=3)
    path = write_checkpoint(tmp_path, 3, models(9.0), attempt(2), keep=3)
    assert latest_checkpoint(tmp_path) == path
    assert [each.stem for each in checkpoints(tmp_path)] == ["000002", "000003"]


def test_a_writer_that_was_frozen_leaves_the_checkpoints_of_others(tmp_path):
    for megabatch in (2, 3):
        write_checkpoint(tmp_path, megabatch, models(), attempt(2), keep=3)
    for late in (1, 2):
        write_checkpoint(tmp_path, 1, models(), attempt(late), keep=3)
        assert [each.stem for each in checkpoints(tmp_path)] == ["000001", "000002", "000003"]


def test_a_tree_that_another_has_written_stays_with_those_after_it(tmp_path):
    arrays = {"order": np.arange(3, dtype=np.int32)}
    for tree in (0, 1, 0):
        assert not store_member(tmp_path, tree, arrays, {"rows": 3})
    assert [each.stem for each in checkpoints(tmp_path)] == ["000001", "000002"]


def attempt(number):
    return json.dumps(SESSION | {"history": [], "attempt": number})


def test_a_tree_is_not_followed_by_those_of_a_history_that_was_given_up(tmp_path):
    for number in range(4):
        store_member(tmp_path, number, models(), {})
    (tmp_path / "checkpoints" / "000002.safetensors").unlink()  # damaged, and so deleted
    assert store_member(tmp_path, 1, models(), {}) == ""
    assert [path.stem for path in checkpoints(tmp_path)] == ["000001", "000002"]


def test_no_checkpoint(tmp_path):
    assert checkpoints(tmp_path) == []
    with pytest.raises(ModelError, match="no checkpoint to resume from"):
        latest_checkpoint(tmp_path)


@pytest.mark.parametrize("kept_bytes", [0, 5, 100, -1])
def test_a_file_cut_off_is_refused(tmp_path, kept_bytes):
    path = write_checkpoint(tmp_path, 1, models(), TEXT, keep=2)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    refusal(path)


def test_a_flipped_bit_is_noticed(tmp_path):
    path = write_checkpoint(tmp_path, 1, models(), TEXT, keep=2)
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
        ({}, {"format": "1", "session": "{}"}),
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
        write_checkpoint(tmp_path, 1, models(), TEXT, keep=2)


# ------------------------------------------------------------------------ local state


def local(value):
    return {"replica": np.full(9, value, np.float32), "optimizer.steps": np.array([7])}


def store(tmp_path, megabatch, keep=2):
    for number in range(2):
        write_local(tmp_path, megabatch, number, local(10 * megabatch + number))
    return write_checkpoint(tmp_path, megabatch, models(), TEXT, keep=keep)


def test_local_states_are_read_by_their_number(tmp_path):
    path = store(tmp_path, 3)
    for number in range(2):
        state = read_local(path, number)
        assert state.keys() == {"replica", "optimizer.steps"}
        np.testing.assert_array_equal(state["replica"], local(30 + number)["replica"])
        assert state["optimizer.steps"].tolist() == [7]


def test_local_states_go_with_their_checkpoint(tmp_path):
    write_local(tmp_path, 1, 0, local(0))  # of one that was never complete
    for megabatch in (2, 3, 4):
        store(tmp_path, megabatch)
    found = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert found == ["000003", "000003.safetensors", "000004", "000004.safetensors"]


def test_local_states_are_dropped_unless_their_checkpoint_is_complete(tmp_path):
    path = store(tmp_path, 5)
    drop_local(tmp_path, 5)
    assert read_local(path, 0)
    write_local(tmp_path, 6, 0, local(0))
    drop_local(tmp_path, 6)
    drop_local(tmp_path, 7)
    assert not (tmp_path / "checkpoints" / "000006").exists()
    assert checkpoints(tmp_path) == [path]


def test_local_states_that_are_missing_or_of_another_version_are_refused(tmp_path):
    path = store(tmp_path, 5)
    with pytest.raises(ModelError, match=r"000005/2.safetensors"):
        read_local(path, 2)
    write_tensors(tmp_path / "checkpoints/000005/1.safetensors", local(0), {"format": "0"})
    with pytest.raises(ModelError, match="not of this version; delete"):
        read_local(path, 1)


def test_a_local_state_that_cannot_be_written(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(ModelError, match="cannot be made"):
        write_local(tmp_path, 1, 0, local(0))
