"""The code of the tutorials runs, block after block, as a reader would have it run."""

import gzip
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse as sp
from distributed import Client

from daskxml.cli import main
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml

PAGES = Path(__file__).parents[1] / "docs"
README = (PAGES.parent / "README.md").read_text()
PEERS = re.compile(r"\b(omikuji|pecos|napkinxc|xgboost)\b")


def run_page(name: str) -> dict[str, Any]:
    """Run a page's Python in the working directory, but that of other tools; return its names."""
    text = (PAGES / f"{name}.md").read_text()
    names: dict[str, Any] = {"__name__": name}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)):
        if not PEERS.search(block):
            exec(compile(block, f"{name}.md, block {number}", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_tags(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("tutorials/tags")
    assert names["search"].best_score_ > 0.8
    assert "('stilton', " in capsys.readouterr().out


@pytest.mark.slow
def test_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("tutorials/cluster")
    told = capsys.readouterr().out
    assert names["tree"].result().metrics["P@1"] > 0.8
    assert "('lost', " in told
    assert not names["daskxml"].verify("runs/survivor").disagreements
    assert len(Path("labels.jsonl").read_text().splitlines()) == 500


@pytest.mark.slow
def test_unequal_workers(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("tutorials/unequal")
    seconds = {name: run.history[-1]["train_s"] for name, run in names["found"].items()}
    assert seconds["adaptive-sgd"] < seconds["elastic"] < seconds["mirrored"]
    assert names["one"] / names["four"] > 1.5
    told = capsys.readouterr().out
    assert re.search(r"^\d+ lost old$", told, re.M)
    assert re.search(r"^\d+ joined late$", told, re.M)


def test_serving(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("tutorials/serving")
    told = capsys.readouterr().out
    assert names["same"] > 0.9
    assert "422 " in told
    assert "ended with 0" in told


def write_rows() -> tuple[Any, Any]:
    """Write files as the README names them, and return the training rows."""
    spec = SyntheticSpec(rows=1000, test_rows=200, features=300, labels=40, seed=1)
    for part in ("train", "test"):
        text = write_xml(Path(part), spec, part).read_bytes()
        Path(f"{part}.txt.gz").write_bytes(gzip.compress(text))
    rows, _ = generate(spec)
    return to_scipy(rows.features), to_scipy(rows.labels)


@pytest.mark.slow
def test_the_python_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    X, _ = write_rows()
    _, block = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        names = {"X": X, "client": client}
        exec(block.replace("/shared/", f"{Path.cwd()}/"), names)
    assert float(capsys.readouterr().out) > 0.5
    assert names["scores"].shape == (1000, 40)
    assert names["on_cluster"].reason == "epochs"


@pytest.mark.slow
def test_the_commands_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows()
    begin, _, more = README.partition("### Command line")
    lines = re.findall(r"^    (daskxml .*)$", begin + more.partition("## Which model")[0], re.M)
    assert len(lines) > 5
    for line in lines:
        if "serve" not in line:
            assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
    assert Path("report/index.html").exists()


@pytest.mark.slow
def test_coming_from_other_tools(capsys: pytest.CaptureFixture[str]) -> None:
    spec = SyntheticSpec(rows=1000, test_rows=200, features=300, labels=40, seed=1)
    for part, rows in zip(("train", "test"), generate(spec), strict=True):
        write_xml(Path(f"{part}.txt"), spec, part)
        suffix = "" if part == "train" else "_test"
        sp.save_npz(f"X{suffix}.npz", to_scipy(rows.features))
        sp.save_npz(f"Y{suffix}.npz", to_scipy(rows.labels))
    names = run_page("guides/coming-from")
    assert names["scores"].shape == (200, 40)
    assert len(names["ids"][0]) == 5
    assert {"P@1", "PSP@5", "nDCG@5"} <= set(names["run"].metrics)
