"""report and compare as a user types them, on simulated runs; on a real one in test_train.py."""

import json
import os
import shutil

import pytest

from daskxml.cli import main
from daskxml.data.synthetic import SyntheticSpec, write_xml
from harness.commands import refusal
from harness.records import history

ROWS = SyntheticSpec(rows=1200, test_rows=150, features=200, labels=30, seed=9)
SETTINGS = ["training.megabatches=4", "training.epochs=0", "strategy.batch_max=32",
            "strategy.megabatch_batches=8", "model.hidden=[16]",
            "evaluation.every=2"]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two simulated runs."""
    folder = tmp_path_factory.mktemp("report")
    files = ["--train", str(write_xml(folder / "train.txt", ROWS, "train")),
             "--test", str(write_xml(folder / "test.txt", ROWS, "test"))]  # fmt: skip
    settings = [f"--set={setting}" for setting in SETTINGS]
    for name in ("adaptive-sgd", "elastic"):
        where = ["--speeds", "1,0.5", "--out", str(folder / "runs" / name)]
        assert main(["simulate", name, *files, *settings, *where]) == 0
    return folder / "runs"


def test_a_report_says_where_it_is(runs, tmp_path, capsys):
    assert main(["report", str(runs), "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr()
    assert f"page  {tmp_path / 'out' / 'index.html'}" in output.out
    assert output.err == ""
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["index.html"]


def test_runs_of_different_files_are_kept_apart(runs, tmp_path, capsys):
    shutil.copytree(runs, tmp_path / "runs")
    run_file = tmp_path / "runs" / "elastic" / "run.toml"
    run_file.write_text(run_file.read_text().replace("train.txt", "other.txt"))
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.count("P@1 of at least") == 2
    for number, shown, absent in ((1, "adaptive-sgd", "elastic"), (2, "elastic", "adaptive-sgd")):
        page = (tmp_path / "out" / str(number) / "index.html").read_text()
        assert shown in page
        assert absent not in page


def test_a_report_tells_when_the_level_was_reached(runs, capsys):
    rows = history(runs / "adaptive-sgd")
    level = rows[1]["metrics"]["P@1"]
    assert main(["report", str(runs), "--metric", "P@1", "--at", str(level), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first = next(row for row in rows if row["metrics"].get("P@1", 0) >= level)
    reached = found["runs"]["adaptive-sgd"]
    assert reached["is_reached"]
    assert (reached["rows"], reached["megabatch"]) == (first["rows"], first["megabatch"])
    spent_s = sum(row["train_s"] + row["merge_s"] for row in rows[: first["megabatch"]])
    assert reached["train_s"] == pytest.approx(spent_s)


def test_a_report_tells_how_near_a_run_came(runs, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", str(runs), "--at", "1", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    best = max(row["metrics"]["P@1"] for row in history(runs / "elastic") if row["metrics"])
    assert lines[0].rstrip() == "P@1 of at least 1"
    assert [line.split()[:-1] for line in lines[3:5]] == [
        ["adaptive-sgd", *"-----"],
        ["elastic", *"-----"],
    ]
    assert max(map(len, lines[:5])) <= 80
    assert lines[6].startswith(f"elastic: simulated; not reached, best {best:.4g} after ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["report", "/nowhere"], "/nowhere: no run here"),
        (["report"], "the following arguments are required: DIR"),
        (["report", "RUNS", "--metric", "P@2"], "--metric P@2: no run measured it; there are P@1"),
        (["report", "RUNS", "--at", "61"], "'61' is not a number from 0 to 1"),
        (["report", "RUNS", "--at", "nan"], "'nan' is not a number from 0 to 1"),
        (["report", "RUNS", "--out", "RUNS/elastic/run.toml"], "run.toml: cannot be made"),
    ],
)
def test_what_cannot_be_reported_is_one_line(runs, capsys, arguments, problem):
    given = [argument.replace("RUNS", str(runs)) for argument in arguments]
    assert problem in refusal(capsys, *given)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("history.jsonl", ["verify", "RUN"]),
        ("history.jsonl", ["report", "RUN"]),
        ("model.json", ["evaluate", "RUN", "rows.txt"]),
        (".lock", ["train", "--resume", "RUN"]),
    ],
)
def test_a_strangers_pipes_and_devices_are_refused(runs, tmp_path, capsys, name, command):
    run = tmp_path / "run"
    shutil.copytree(runs / "elastic", run)
    given = [argument.replace("RUN", str(run)) for argument in command]
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (run / name).unlink(missing_ok=True)
        make(run / name)
        assert main(given) == 2
        assert f"{run / name}: neither a file nor a folder" in capsys.readouterr().err


EVIL = "\x1b]0;title\x07\x1b[2J\u202e[/]"  # a title, an empty screen, text backwards, rich's markup


def test_what_a_stranger_has_written_does_nothing_to_a_terminal(runs, tmp_path, capsys):
    run = tmp_path / f"run {EVIL.replace('/', '')}"
    shutil.copytree(runs / "elastic", run)
    text = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text(text.replace('"0"', json.dumps(EVIL)))
    starts = json.loads((run / "environment.json").read_text())
    starts[0]["host"] = starts[0][EVIL] = EVIL
    (run / "environment.json").write_text(json.dumps(starts))
    with (run / "run.toml").open("a") as file:
        file.write(f"# {EVIL}\n[{json.dumps(EVIL)}]\nkey = {json.dumps(EVIL)}\n")
    shutil.copytree(runs / "adaptive-sgd", run.parent / "other")
    out = tmp_path / "out"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 0
    with (run / "history.jsonl").open("a") as file:
        file.write(f"{EVIL}\n")
    assert main(["report", str(run), "--out", str(out / "2")]) == 0
    (run / "run.toml").write_bytes((runs / "elastic" / "run.toml").read_bytes())
    (run / "history.jsonl").write_text(text.replace('"0"', json.dumps(EVIL), 1))
    main(["verify", str(run)])
    shown = capsys.readouterr()
    told = [shown.out, shown.err, *(path.read_text() for path in out.rglob("*.*"))]
    assert r"\x1b]0;title\x07" in "".join(told)
    for each in told:
        assert not set(each) & set("\x1b\x07\u202e")
