import contextlib
import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import load_file, save_file

from daskxml.core.errors import ModelError
from daskxml.models.tensors import read_tensors, write_tensors

OLD = {"weights": np.arange(6, dtype=np.float32).reshape(2, 3), "counts": np.array([1, 2])}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    write_tensors(path, OLD, {"megabatch": "5"})
    return path


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and np.array_equal(left[n], right[n]) for n in left
    )


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda n: n != "__metadata__"),
        st.sampled_from([np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_]).flatmap(
            lambda dtype: arrays(dtype, array_shapes(min_dims=0, min_side=0, max_side=3))
        ),
        max_size=4,
    ),
    st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))),
)
def test_what_was_written_is_read(tmp_path_factory, held: dict, metadata: dict) -> None:
    path = tmp_path_factory.mktemp("tensors") / "any.safetensors"
    metadata.pop("daskxml.sha256", None)  # the file's own
    held = {name: np.array(np.nan_to_num(array)) for name, array in held.items()}
    write_tensors(path, held, metadata)
    found, found_metadata = read_tensors(path)
    assert same(found, held)
    assert found_metadata == metadata


def test_the_format_is_the_one_of_the_safetensors_library(written: Path, tmp_path: Path) -> None:
    assert same(load_file(written), OLD)
    save_file(OLD, tmp_path / "theirs.safetensors")
    found, metadata = read_tensors(tmp_path / "theirs.safetensors", verify=False)
    assert same(found, OLD)
    assert metadata == {}
    with pytest.raises(ModelError, match="it has no checksum"):
        read_tensors(tmp_path / "theirs.safetensors")


def test_arrays_are_mapped_and_outlive_the_replacement_of_the_file(written: Path) -> None:
    found, _ = read_tensors(written)
    assert not found["weights"].flags.owndata
    before = written.read_bytes()
    found["weights"][0, 0] += 1  # in this process
    found["weights"][0, 0] -= 1
    assert written.read_bytes() == before
    write_tensors(written, {"weights": np.zeros(3, np.float32)}, {})
    assert same(found, OLD)


def test_arrays_that_are_not_contiguous_are_written_as_they_look(tmp_path: Path) -> None:
    turned = {"turned": np.arange(6.0).reshape(2, 3).T}
    write_tensors(tmp_path / "t", turned, {})
    assert same(read_tensors(tmp_path / "t")[0], turned)


def test_every_flipped_bit_is_noticed(written: Path) -> None:
    whole, harmless = written.read_bytes(), 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        written.write_bytes(damaged)
        with contextlib.suppress(ModelError):  # else the flip fell on what says nothing:
            found, metadata = read_tensors(written)  # a space, or the name of the digest
            assert same(found, OLD)
            assert metadata["megabatch"] == "5"
            harmless += 1
    assert harmless < 0.1 * len(whole)


def test_every_truncation_and_more_behind_the_end_are_noticed(written: Path) -> None:
    whole = written.read_bytes()
    for length in range(len(whole) + 2):
        if length == len(whole):
            continue
        written.write_bytes((whole + b"x")[:length])
        with pytest.raises(ModelError, match=r"state.safetensors: damaged or cut off"):
            read_tensors(written)


def test_a_header_of_a_foreign_dtype_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    path = tmp_path / "bf16.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    with pytest.raises(ModelError, match="BF16"):
        read_tensors(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none.safetensors: cannot be read"):
        read_tensors(tmp_path / "none.safetensors")


def test_a_dtype_without_a_place_in_the_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'text' of dtype <U1 cannot be stored"):
        write_tensors(tmp_path / "t", {"text": np.array(["a"])}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be written"):
        write_tensors(tmp_path / "none" / "t", OLD, {})


def test_a_full_disk_leaves_the_old_file(written: Path) -> None:
    """A limit on the size of files fails the write in its middle, as a full disk does."""
    script = f"""
import resource, numpy as np
from daskxml.core.errors import ModelError
from daskxml.models.tensors import write_tensors
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    write_tensors({str(written)!r}, {{"weights": np.ones(1 << 20, np.float32)}}, {{}})
except ModelError as error:
    print(error.message)
"""
    said = run(script).stdout
    assert f"{written}: cannot be written" in said
    assert "unchanged" in said
    assert same(read_tensors(written)[0], OLD)
    assert [path.name for path in written.parent.iterdir()] == [written.name]


@pytest.mark.parametrize("moment", ["written", "flushed"])
def test_a_killed_writer_leaves_the_old_file_and_the_next_one_succeeds(
    written: Path, moment: str
) -> None:
    """Killed when half of the new file is there, and when all of it is but for the rename."""
    script = f"""
import os, signal, numpy as np
from pathlib import Path
from daskxml.core.files import replacing
from daskxml.models import tensors
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if {moment!r} == "flushed":
    tensors.Path.replace = die
    tensors.write_tensors({str(written)!r}, {{"weights": np.ones(1 << 18, np.float32)}}, {{}})
with replacing(Path({str(written)!r})) as partial:
    partial.write_bytes(b"half")
    die()
"""
    assert run(script).returncode == -signal.SIGKILL
    assert same(read_tensors(written)[0], OLD)
    new = {"weights": np.zeros(4, np.float32)}
    write_tensors(written, new, {})
    assert same(read_tensors(written)[0], new)
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
