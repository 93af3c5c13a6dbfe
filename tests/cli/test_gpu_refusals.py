"""GPUs that cannot be used as asked: a driver that is too old, two workers on one slice.

The driver's program and library are stand-ins that tell what real ones would; all else is real.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import daskxml
from daskxml.cli import main
from harness.clusters import local_client
from harness.small_data import data as data

TABLE = "0, GPU-5c, NVIDIA A100-SXM4-40GB, 40960, 470.82.01"
LISTING = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c)
  MIG 3g.20gb     Device  0: (UUID: MIG-a1)
"""
LIBRARY = "int cuDriverGetVersion(int *version) { *version = %d; return 0; }"
ROOT = Path(daskxml.__file__).parents[1]


def stand_in(folder: Path, listing: str, cuda: int) -> dict[str, str]:
    """Return the environment of a machine with one A100, whose driver runs this CUDA."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in for the driver's library")
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\nif [ \"$1\" = -L ]; then printf '{listing}'; else echo '{TABLE}'; fi\n"
    )
    program.chmod(0o755)
    (folder / "cuda.c").write_text(LIBRARY % cuda)
    library = str(folder / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-o", library, str(folder / "cuda.c")], check=True)
    cupy = folder / "cupy_cuda12x-14.2.0.dist-info"
    cupy.mkdir()
    (cupy / "METADATA").write_text("Metadata-Version: 2.1\nName: cupy-cuda12x\nVersion: 14.2.0\n")
    return os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": f"{folder}:{ROOT}",
        "CUDA_VISIBLE_DEVICES": "0",
    }


def command(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    called = [sys.executable, "-m", "daskxml", *arguments]
    return subprocess.run(called, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_a_driver_older_than_the_packages(data: dict[str, Path], tmp_path: Path):
    there = stand_in(tmp_path, "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c)\\n", 11040)
    options = ("--device", "cuda", "--out", str(tmp_path / "run"))
    done = command(there, "train", "adaptive-sgd", "--train", str(data["train"]), *options)
    assert done.returncode == 2
    assert done.stderr == (
        "daskxml: error: [cluster] device = 'cuda': the driver runs CUDA 11.4, older than the "
        "installed packages' CUDA 12: update the driver to 525 or newer; or take --device cpu\n"
    )
    assert not (tmp_path / "run").exists()
    output = command(there, "inspect")
    assert output.returncode == 1
    assert "0: NVIDIA A100-SXM4-40GB, 40 GiB, GPU-5c\n" in output.stdout
    assert "driver    470.82.01, CUDA 11.4\n" in output.stdout
    assert "packages' CUDA 12: update the driver to 525 or newer\n" in output.stdout


@pytest.mark.slow
def test_two_workers_on_one_slice(
    data: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    there = stand_in(tmp_path, LISTING.replace("\n", "\\n"), 12040)
    options = ("--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--name", "gpu")
    with (
        local_client(0) as client,
        (tmp_path / "log").open("w") as log,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", "worker", client.scheduler.address, *options],
            env=there, cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            client.wait_for_workers(2, timeout=60)
            run = ("--out", str(tmp_path / "run"), "--scheduler", client.scheduler.address)
            assert main(["train", "adaptive-sgd", "--train", str(data["train"]), *run]) == 2
        finally:
            process.terminate()
            process.wait(30)
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "is on the same MIG slice MIG-a1; start each with a slice of its own" in output
    assert not (tmp_path / "run").exists()
