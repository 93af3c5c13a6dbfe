"""`docs/examples/annif` in the real program, beside Annif's omikuji backend."""

import importlib.util
import json
import random
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs/examples/annif"
NOISE = 0.02  # of F1 and precision on 400 documents
SUBJECTS = 60

_spec = importlib.util.spec_from_file_location("compare", EXAMPLE / "compare.py")
assert _spec is not None
assert _spec.loader is not None
compare = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compare)


def words(rng: random.Random, count: int) -> list[str]:
    """Return words that cannot be told from each other's parts."""
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    return ["".join(rng.choices(syllables, k=3)) for _ in range(count)]


def documents(rng: random.Random, count: int, own: dict[str, list[str]], common: list[str]) -> Any:
    """Return texts with one to three subjects: some words of each, most of none."""
    for _ in range(count):
        chosen = rng.sample(list(own), rng.randint(1, 3))
        text = [word for subject in chosen for word in rng.choices(own[subject], k=2)]
        yield " ".join([*text, *rng.choices(common, k=12)]), chosen


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a host with both backends, each trained on 2,000 documents."""
    folder = tmp_path_factory.mktemp("annif")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv/bin"
    packages = [str(ROOT), "-r", str(EXAMPLE / "requirements.txt")]
    subprocess.run([programs / "pip", "install", "--quiet", *packages], check=True)
    projects = {"ours": {"backend": "daskxml"}, "peer": {"backend": "omikuji"}}
    host = compare.Host(folder, programs / "annif", projects)
    rng = random.Random(0)
    common = words(rng, 400)
    own = {f"subject{n}": [*words(rng, 6), *rng.sample(common, 4)] for n in range(SUBJECTS)}
    for name, count in (("train", 2000), ("test", 400)):
        host.write_documents(name, documents(rng, count, own, common))
    host.run("load-vocab", "subjects", host.write_vocabulary(own), "--language", "en")
    for project in projects:
        host.run("train", project, "train.tsv")
    host.text = " ".join(own["subject7"][:2])
    return host


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # an installation


def test_it_ranks_as_well_as_omikuji_in_processes_side_by_side(host: Any) -> None:
    ours, peer = (
        host.evaluate(project, Path("test.tsv"), "--jobs", "2") for project in ("ours", "peer")
    )
    for metric in compare.METRICS:
        assert ours[metric] > peer[metric] - NOISE, (metric, ours, peer)
    assert 0.3 < ours["F1@5"] < 0.95  # neither hopeless nor trivial
    alone = host.evaluate("ours", Path("test.tsv"))
    assert all(alone[metric] == ours[metric] for metric in compare.METRICS)


def test_a_text_gets_its_subject_and_one_without_known_words_none(host: Any) -> None:
    told, _ = host.run("suggest", "ours", "--limit", "5", text=host.text)
    assert told.splitlines()[0].startswith("<urn:subject:subject7>\tsubject7\t")
    assert len(told.splitlines()) <= 5
    assert host.run("suggest", "ours", text="qqq xxx")[0] == ""


def test_the_model_is_one_file_and_settings_of_a_project_reach_it(host: Any) -> None:
    (model,) = (host.folder / "data/projects/ours").glob("*model*")
    four = model.stat().st_size
    host.run("train", "ours", "--cached", "-b", "daskxml.training.trees=1", "--jobs", "1")
    assert model.stat().st_size < 0.5 * four
    with pytest.raises(RuntimeError, match=r"'ours': .*model\.cots: unknown key"):
        host.run("train", "ours", "--cached", "-b", "daskxml.model.cots=1")
    host.run("train", "ours", "--cached")
    assert model.stat().st_size == four


def test_trials_of_a_search_run_side_by_side(host: Any) -> None:
    file = host.folder / "trials.tsv"
    options = ("--trials", "2", "--jobs", "2", "--metric", "F1@5", "--results-file", file)
    told, _ = host.run("hyperopt", "ours", "test.tsv", *options)
    names, *trials = (line.split("\t") for line in file.read_text().splitlines())
    assert set(names) == {"trial", "value", "model.cost", "training.trees"}
    assert len(trials) == 2
    best = max(float(trial[names.index("value")]) for trial in trials)
    assert re.search(rf"best F1@5 score {best:.4f}", told)
    assert best > 0.3


@pytest.fixture
def server(host: Any) -> Iterator[str]:
    """Yield the address of Annif's own server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [host.program, "run", "--port", str(port)], cwd=host.folder, env=host.environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}/v1/projects"
    finally:
        process.terminate()
        process.wait(60)


def ask(address: str, **form: str) -> Any:
    """Send a form, or ask for a page, as soon as there is a server; return its answer."""
    data, end = urllib.parse.urlencode(form).encode() if form else None, time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(address, data, timeout=60) as answer:
                return json.load(answer)
        except OSError:  # nobody listens yet
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def test_its_server_answers_as_the_command_does(host: Any, server: str) -> None:
    trained = {each["project_id"]: each["is_trained"] for each in ask(server)["projects"]}
    assert trained == {"ours": True, "peer": True}
    for project in trained:
        found = ask(f"{server}/{project}/suggest", text=host.text, limit="5")["results"]
        told, _ = host.run("suggest", project, "--limit", "5", text=host.text)
        lines = [line.split("\t") for line in told.splitlines() if line.startswith("<")]
        assert [each["label"] for each in found] == [label for _, label, _ in lines]
        for each, (_, _, score) in zip(found, lines, strict=True):
            assert each["score"] == pytest.approx(float(score), abs=1e-4)
        assert found[0]["label"] == "subject7"
