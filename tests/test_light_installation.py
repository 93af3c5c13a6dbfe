"""The package without its extras: training in one process and predicting, without Dask or Bokeh."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKED = ("bokeh", "cloudpickle", "dask", "distributed", "jinja2", "prometheus_client")
COMMANDS = (
    ("train", "best", "rows.txt", "--test", "rows.txt", "--out", "run"),
    ("predict", "run", "rows.txt", "--out", "top.csv"),
    ("evaluate", "run", "rows.txt", "--json"),
)
LISTS = "import daskxml; daskxml.train('tree', train=['rows.txt'], test=('rows.txt',))"


def run_all(command: list[str], folder: Path, settings: dict[str, str]) -> str:
    (folder / "rows.txt").write_text("8 4 2\n" + "0 0:1\n1 1:1\n" * 4)
    plain = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    for arguments in COMMANDS:
        subprocess.run([*command, *arguments], cwd=folder, env=plain | settings, check=True)
    python = [str(Path(command[0]).with_name("python")), "-c", LISTS]
    subprocess.run(python, cwd=folder, env=plain | settings, check=True)
    done = subprocess.run(
        [*command, "train", "network", "rows.txt", "--workers", "1"], cwd=folder,
        env=plain | settings, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    return done.stderr


def test_without_dask_models_are_trained_and_predict(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    for name in BLOCKED:
        text = f"raise ModuleNotFoundError('taken away', name={name!r})\n"
        (taken / f"{name}.py").write_text(text)
    path = {"PYTHONPATH": f"{taken}{os.pathsep}{ROOT}"}
    error = run_all([sys.executable, "-m", "daskxml"], tmp_path, path)
    need = "training on a cluster needs Dask: pip install 'daskxml[cluster]'"
    assert error == f"daskxml: error: {need}; daskxml inspect examines the installation\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # an installation
def test_a_fresh_environment_has_no_dask(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv/bin"
    subprocess.run([programs / "pip", "install", "--quiet", str(ROOT)], check=True)
    listed = subprocess.run(
        [programs / "pip", "list", "--format", "freeze"], capture_output=True, text=True, check=True
    )
    found = {line.partition("==")[0] for line in listed.stdout.splitlines()}
    assert {"daskxml", "numba"} < found
    assert not found & set(BLOCKED)
    assert "needs Dask" in run_all([str(programs / "daskxml")], tmp_path, {})
    subprocess.run([programs / "daskxml", "inspect"], check=True)
