"""Reports of runs in every state: one page that needs nothing else."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from daskxml.api.in_process import simulate
from daskxml.core.errors import ModelError
from daskxml.observe.report import Comparison, folder_of, read_runs

VOID = {"meta", "link", "br", "hr", "img"}


class Checker(HTMLParser):
    """Collects the texts, checks that elements are closed in turn, and notes what is loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.loaded = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        named = dict(attributes)
        self.loaded += [named[key] for key in ("src", "href", "data", "action") if key in named]
        assert tag != "script"

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append(text)


def write(directories, folder, *asked):
    return Comparison.of(read_runs(directories), *asked).write(folder)


def read(page):
    checker = Checker()
    checker.feed(page.read_text(encoding="utf-8"))
    assert checker.open == []
    assert checker.loaded == ["data:,"], "nothing is loaded from anywhere"
    return " ".join(" ".join(checker.texts).split())


@pytest.fixture(scope="module")
def report(simulated, tmp_path_factory):
    return write([simulated], tmp_path_factory.mktemp("out") / "report")


def test_the_page_has_all_of_both_runs(report, simulated):
    text = read(report)
    for piece in (
        "2 runs", "adaptive-sgd", "elastic", "ended by megabatches, simulated", "nDCG@5",
        "strategy.name", "worker 1 lost", "worker 2 joined", "Batch size", "Merge weight",
        "Utilisation", "Time by phase", "[strategy]", "per_nonzero_s",
        '"numpy"',
    ):  # fmt: skip
        assert piece in text, piece
    assert str(simulated / "elastic") in text
    page = report.read_text()
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)


def test_the_page_has_all_charts_that_are_not_zero(report):
    assert report.read_text().count("<figure>") == 6 + 2 * 6  # of both runs, and of each


def test_the_level_and_the_metric_may_be_chosen(simulated, tmp_path):
    page = write([simulated], tmp_path, "nDCG@3", 0.99)
    assert "best nDCG@3" in read(page)
    assert "not reached" in read(page)


def test_a_run_without_test_rows_shows_its_loss(data, tmp_path):
    values = {"training": {"megabatches": 2}, "model": {"hidden": [8]},
              "strategy": {"batch_max": 32, "megabatch_batches": 10}}  # fmt: skip
    simulate(values, [1.0], train=data["train"], out=tmp_path / "run")
    compared = Comparison.of(read_runs([tmp_path / "run"]))
    page = compared.write(folder_of(compared.runs))
    assert page == tmp_path / "run" / "report" / "index.html"
    text = read(page)
    assert "No run has been scored" in text
    assert "Loss against time" in text
    assert "P@1 against" not in text


def test_runs_in_every_state_beside_each_other(simulated, run_dir, tmp_path):
    path = run_dir / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-50])
    (run_dir / "model.json").unlink()
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "run.toml").write_text((run_dir / "run.toml").read_text())
    bare = tmp_path / "<b>bare"
    bare.mkdir()
    (bare / "history.jsonl").write_text(path.read_text().splitlines()[0] + "\n")
    runs = read_runs([simulated / "elastic", run_dir, fresh, bare])
    page = Comparison.of(runs).write(tmp_path / "report")
    text = read(page)
    assert "broken off after 5 mega-batches" in text
    assert "broken off after 0 mega-batches" in text
    assert "<b>bare" in text
    assert [f"{run.name}: {problem}" for run in runs for problem in run.problems] == [
        "run: history.jsonl: line 6 is cut off; left out",
        "<b>bare: run.toml cannot be read (No such file or directory)",
    ]


def test_rows_with_the_least_that_a_row_has_are_reported(tmp_path):
    """A later or an earlier version may have fewer figures."""
    least = {"rows": 10, "train_s": 1.0, "merge_s": 0.5, "metrics": {}, "workers": {"a": {}}}
    rows = [least | {"megabatch": m, "perturbed": True} for m in (1, 2)]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write([tmp_path], tmp_path / "report")
    assert "broken off after 2 mega-batches" in read(page)


def test_the_same_settings_are_said_to_be(simulated, run_dir, tmp_path):
    page = write([simulated / "changing", run_dir], tmp_path / "report")
    assert "The runs have the same settings." in read(page)


def test_a_report_is_written_over_an_earlier_one(simulated, tmp_path):
    first = write([simulated], tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert write([simulated], tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_place_that_cannot_be_written_to_is_one_line(simulated, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="choose another --out"):
        write([simulated], tmp_path / "file")
    (tmp_path / "out" / "index.html").mkdir(parents=True)
    with pytest.raises(ModelError, match="cannot be written"):
        write([simulated], tmp_path / "out")


def test_reading_runs_does_not_load_dask():
    code = (
        "import sys, daskxml.observe.report; "
        "print(sorted(set(sys.modules) & {'dask', 'distributed'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
