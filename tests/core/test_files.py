"""Files that are replaced whole or not at all; killed writers are tested with tensors."""

import os
from pathlib import Path

import pytest

from daskxml.core.errors import ModelError
from daskxml.core.files import is_locked, lock_folder, replace_text, replacing


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


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "name.csv"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(ModelError, match="cannot be written, as it is no file"), replacing(path):
        raise AssertionError
    assert not path.is_file()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path, target = tmp_path / "link", tmp_path / "folder" / "file"
    path.symlink_to(target)
    for text in ("new", "newer"):
        replace_text(path, text)
        assert (target.read_text(), path.is_symlink()) == (text, True)


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
