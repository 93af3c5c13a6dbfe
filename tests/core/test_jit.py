"""Kernels of the cache load without what only a compiler needs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import daskxml
from daskxml.core.errors import ConfigError
from daskxml.core.files import KERNEL_CACHE, keep_private

TRAINING = """
run = daskxml.train("tree", train=(np.eye(40), np.eye(40)), overrides=["cluster.device=cpu"])
run.model.predict(np.eye(40))
"""
SCRIPT = f"""
import sys
import numpy as np
import daskxml
{TRAINING}
print("numba.np.linalg" in sys.modules)
"""


def test_a_training_with_a_warm_cache_does_not_load_the_compiler():
    exec(TRAINING, {"daskxml": daskxml, "np": np})  # may compile
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


# -------------------------------------------- where compiled kernels are kept


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(KERNEL_CACHE, str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")  # so that it is as before when the test is over
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    return tmp_path / str(os.getuid())


def test_each_user_has_a_folder_that_nobody_else_may_write(own: Path) -> None:
    for _ in range(2):
        os.environ.pop("NUMBA_CACHE_DIR", None)
        keep_private()
        assert os.environ["NUMBA_CACHE_DIR"] == str(own)
    assert own.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_is_refused(own: Path) -> None:
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(ConfigError, match=re.escape(str(own))):
        keep_private()
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_a_link_to_a_folder_of_another_user_is_refused(own: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    own.symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="set NUMBA_CACHE_DIR"):
        keep_private()


def test_a_root_that_is_not_there_is_one_line(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNEL_CACHE, str(own / "none"))
    with pytest.raises(ConfigError, match="name a folder to write to"):
        keep_private()


def test_the_user_has_the_last_word(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "elsewhere")
    keep_private()
    assert os.environ["NUMBA_CACHE_DIR"] == "elsewhere"
    assert not own.exists()
