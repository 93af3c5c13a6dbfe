"""Files that are replaced whole or not at all; killed writers are tested with tensors."""

from pathlib import Path

import pytest

from daskxml.core.errors import ModelError
from daskxml.core.files import is_locked, lock_folder, replacing


def test_a_block_that_fails_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"whole")

    def fail() -> None:
        with replacing(path) as partial:
            partial.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_locked_until_its_lock_is_closed(tmp_path: Path) -> None:
    with lock_folder(tmp_path, "in use"):
        assert is_locked(tmp_path)
        with pytest.raises(ModelError, match="in use"):
            lock_folder(tmp_path, "in use")
    assert not is_locked(tmp_path)


def test_a_folder_below_a_file_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot be made, .*file is a file"):
        lock_folder(tmp_path / "file" / "run", "in use")
