"""The examination of a machine: here, with packages missing, and with made-up versions."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import daskxml
from daskxml.cli import main
from daskxml.cli.inspect import describe_gpus
from daskxml.core.hardware import Gpu

ROOT = Path(daskxml.__file__).parents[1]
TRAIN = ["train", "tree", "rows.txt"]
A100 = Gpu(index=0, uuid="GPU-a", name="A100", memory_bytes=40 << 30, driver="470.82.01")


def doctor(python: str, path: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "daskxml", "inspect", *options]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def test_here_everything_is_found(capsys):
    assert main(["inspect"]) == 0
    output = capsys.readouterr().out
    assert f"daskxml   {daskxml.__version__}, {ROOT}" in output
    for word in (
        "Python",
        "distributed",
        "cores",
        "GPUs",
        "kernels",
    ):
        assert word in output
    assert output.endswith("no problems\n")


@pytest.mark.slow
def test_without_dask(tmp_path):
    for name in ("dask", "distributed"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('taken away')\n")
    done = doctor(sys.executable, f"{tmp_path}:{ROOT}")
    assert done.returncode == 1, done.stderr
    assert "does not load: ImportError: taken away" in done.stdout
    assert ": pip install --force-reinstall dask\n" in done.stdout
    assert "2 problems" in done.stdout


def test_an_interpreter_without_any_package(tmp_path):
    venv.create(tmp_path, with_pip=False, symlinks=True)
    done = doctor(str(tmp_path / "bin" / "python"), str(ROOT), "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    problems = [each["text"] for each in report["findings"] if each["level"] == "problem"]
    assert problems == ["daskxml is not installed"]
    assert report["problems"] == 1


@pytest.mark.slow  # compiles all of them
def test_the_kernels_are_compiled_once(tmp_path):
    for folder in ("daskxml", "pipelines", "datasets"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    outputs = [with_kernels(tmp_path, *words) for words in (["inspect"], ["inspect"], TRAIN)]
    kept = [line for text in outputs[:2] for line in text.splitlines() if line.startswith("kernel")]
    assert [line.endswith("s, and kept") for line in kept] == [True, False]
    assert "compiling" not in outputs[2]


@pytest.mark.slow  # compiles all of them
def test_a_wheel_brings_the_kernels(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    wanted = os.environ | {"DASKXML_KERNELS": "1"}
    subprocess.run([*build, str(ROOT)], env=wanted, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    assert "compiling" not in with_kernels(tmp_path, *TRAIN)
    assert not [*(tmp_path / "kernels").rglob("*.nbc")]


def with_kernels(folder, *words):
    """Run a command of the package in a folder, whose user has no kernels at first."""
    (folder / "rows.txt").write_text("4 2 2\n" + "0 0:1\n1 1:1\n" * 2)
    settings = {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "kernels")}
    command = [sys.executable, "-m", "daskxml", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | settings, cwd=folder, check=True
    ).stdout


def described(gpus, variable, driver, cupy):
    return [(it.text, it.level, it.remedy) for it in describe_gpus(gpus, variable, driver, cupy)]


def test_a_driver_older_than_the_packages():
    text, level, remedy = described([A100], None, (11, 4), [12])[-1]
    assert text == "the driver runs CUDA 11.4, older than the installed packages' CUDA 12"
    assert (level, remedy) == ("problem", "update the driver to 525 or newer")


def test_a_gpu_without_packages_is_only_a_hint():
    assert described([A100], None, (13, 0), [])[-1] == (
        "CuPy is not installed", "hint", "pip install 'daskxml[cuda13]'",
    )  # fmt: skip


def test_a_hidden_gpu_is_said_to_be():
    assert described([A100], "", (12, 4), [])[0][0].endswith(
        "GPU-a, hidden by CUDA_VISIBLE_DEVICES="
    )
