"""What nvidia-smi prints, what CUDA_VISIBLE_DEVICES leaves of it, and whether packages fit."""

import sys
from pathlib import Path

import pytest

from daskxml.core import hardware
from daskxml.core.hardware import cgroup_rooms, cuda_problem, parse_gpus, visible_gpus

TABLE = """0, GPU-11, NVIDIA H100 80GB HBM3, 81559, 535.104.05
1, GPU-22, NVIDIA H100 80GB HBM3, 81559, 535.104.05
2, GPU-33, Odd, Name, [N/A], 535.104.05
"""
LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22)
  MIG 1g.10gb     Device  0: (UUID: MIG-a1)
  MIG 1g.10gb+me  Device  1: (UUID: MIG-b2)
GPU 2: Odd, Name (UUID: GPU-33)
"""
MIXED = parse_gpus(TABLE, LISTING)


def test_slices_stand_in_the_place_of_their_gpu():
    assert [(gpu.index, gpu.uuid, gpu.memory_bytes >> 20) for gpu in MIXED] == [
        (0, "GPU-11", 81559),
        (1, "MIG-a1", 10 << 10),
        (1, "MIG-b2", 10 << 10),
        (2, "GPU-33", 0),
    ]
    assert [gpu.is_slice for gpu in MIXED] == [False, True, True, False]
    assert MIXED[3].name == "Odd, Name"


@pytest.mark.parametrize(
    ("variable", "uuids"),
    [
        (None, ["GPU-11", "MIG-a1", "MIG-b2", "GPU-33"]),
        ("", []),
        ("2,0", ["GPU-33", "GPU-11"]),
        ("1", ["MIG-a1"]),
        ("MIG-b2", ["MIG-b2"]),
        ("GPU-3", ["GPU-33"]),
        ("0,9,2", ["GPU-11"]),
        ("NoDevFiles", []),
    ],
)
def test_what_a_process_sees(variable, uuids):
    assert [gpu.uuid for gpu in visible_gpus(MIXED, variable)] == uuids


@pytest.mark.parametrize(
    ("driver", "cupy", "problem"),
    [
        ((12, 2), (12,), ""),
        ((13, 0), (12,), ""),
        ((12, 2), (12, 13), "two versions of CUDA: pip uninstall cupy-cuda13x"),
        ((11, 4), (12,), "CUDA 11.4, older than the installed packages' CUDA 12: update the driv"),
        ((0, 0), (12,), "libcuda is missing: install the driver 525 or newer"),
        ((13, 1), (), "pip install 'daskxml[cuda13]'"),
    ],
)
def test_whether_packages_fit_the_driver(driver, cupy, problem):
    found = cuda_problem(driver, cupy)
    assert problem in found
    assert bool(found) == bool(problem)


def test_the_driver_is_asked_by_its_own_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -L ] && cat {tmp_path}/listing || cat {tmp_path}/table\n'
    )
    program.chmod(0o755)
    (tmp_path / "listing").write_text(LISTING)
    (tmp_path / "table").write_text(TABLE)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    hardware.find_gpus.cache_clear()
    try:
        assert hardware.find_gpus() == MIXED
    finally:
        hardware.find_gpus.cache_clear()


@pytest.mark.parametrize(
    ("packages", "found"),
    [((), ()), (("cupy",), (12,)), (("cupy_cuda13x",), (13,)), (("cupy", "cupy_cuda13x"), (13,))],
)
def test_a_cupy_that_conda_has_installed_is_one(tmp_path, monkeypatch, packages, found):
    for name in packages:
        folder = tmp_path / f"{name}-14.0.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 14.0.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(hardware, "driver_cuda", lambda: (12, 4))
    assert hardware.installed_cupy() == found


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/a/b", "a", ("memory.max", "memory.current", "inactive_file")),
        ("7:memory:/a/b", "memory/a",
         ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)  # fmt: skip
def test_the_limit_of_a_control_group_above_counts(tmp_path, line, folder, names):
    """Files of groups without a limit are left out; pages of unused files can be had again."""
    group = tmp_path / folder
    (group / "b").mkdir(parents=True)
    (group / "b" / "memory.max").write_text("max\n")
    for name, text in zip(names, ("1000\n", "700\n"), strict=False):
        (group / name).write_text(text)
    (group / "memory.stat").write_text(f"anon 5\n{names[2]} 150\n")
    own = tmp_path / "own"
    own.write_text(f"12:cpu:/\n{line}\n")
    assert cgroup_rooms(str(tmp_path), str(own))[1:] == [450]
