"""The memory that a process may still take, under limits that are really set."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOLD = "from daskxml.core.room import room_bytes; print(room_bytes())"
LIMITED = "import resource; resource.setrlimit(resource.{}, (1 << 31, 1 << 31)); " + TOLD


@pytest.mark.parametrize("limit", ["RLIMIT_DATA", "RLIMIT_AS"])
def test_a_limit_of_the_process_counts_less_what_it_has(limit):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit)], capture_output=True, text=True, check=True
    )
    assert 0 < int(done.stdout) < 1 << 31


def test_a_control_group_counts_its_pages_as_free(tmp_path):
    from daskxml.core import room

    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    assert [*room._group_room(tmp_path, "memory.max", "memory.current")] == [400]
    (tmp_path / "memory.max").write_text("max\n")
    assert [*room._group_room(tmp_path, "memory.max", "memory.current")] == []
    assert [*room._group_room(tmp_path / "none", "memory.max", "memory.current")] == []
