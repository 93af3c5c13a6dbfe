"""train, evaluate, predict and resume as a user types them, on a local cluster of one worker."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from rich.console import Console

import daskxml
from daskxml.api.runs import RunHandle, find_run
from daskxml.cli import main
from daskxml.cli.train import runs_table
from daskxml.cluster import connection
from daskxml.config import load_run_config
from daskxml.core.errors import ClusterError
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml
from harness.records import history

ROWS = SyntheticSpec(rows=1500, test_rows=200, features=200, labels=30, seed=9)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with rows and a run of four mega-batches."""
    folder = tmp_path_factory.mktemp("train")
    train = write_xml(folder / "train.txt", ROWS, "train")
    test = write_xml(folder / "test.txt", ROWS, "test")
    settings = ["training.megabatches=4", "strategy.batch_max=32", "strategy.megabatch_batches=10"]
    options = [f"--set={setting}" for setting in [*settings, "model.hidden=[16]"]]
    files = ["--train", str(train), "--test", str(test), "--out", str(folder / "run")]
    assert main(["train", "adaptive-sgd", *files, "--workers", "1", *options]) == 0
    return folder


@pytest.mark.slow
def test_without_a_run_file_four_trees_are_trained(trained, capsys):
    train, test, out = (str(trained / name) for name in ("train.txt", "test.txt", "trees"))
    assert main(["train", train, "--test", test, "--workers", "1", "--out", out]) == 0
    assert repr(daskxml.load(out)) == "<daskxml.Model 200 -> 30, 4 label trees>"
    run = daskxml.train(train=train, test=test, workers=1)
    assert run.metrics == history(trained / "trees")[-1]["metrics"]


def test_a_run_directory_holds_the_resolved_run_the_history_and_the_model(trained):
    config = load_run_config(trained / "run" / "run.toml")
    assert config.training.megabatches == 4
    assert config.model.hidden == (16,)
    assert config.cluster.workers == 1
    assert [row["megabatch"] for row in history(trained / "run")] == [1, 2, 3, 4]
    assert {"model.json", "model.safetensors"} <= {p.name for p in (trained / "run").iterdir()}


def test_evaluate_agrees_with_the_history_and_with_a_count_of_what_predict_wrote(trained, capsys):
    run, test = str(trained / "run"), str(trained / "test.txt")
    assert main(["evaluate", run, test, "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics == history(trained / "run")[-1]["metrics"]
    out = trained / "scores.npz"
    assert main(["predict", run, test, "--top-k", "1", "--out", str(out)]) == 0
    scores, labels = scipy.sparse.load_npz(out), generate(ROWS)[1].labels
    hits = 0
    for row in range(200):
        truth = labels.indices[labels.indptr[row] : labels.indptr[row + 1]]
        hits += int(scores[row].indices[0] in truth)
    assert metrics["P@1"] == hits / 200


def test_a_real_run_is_reported_and_compared(trained, tmp_path, capsys):
    run, rows = str(trained / "run"), history(trained / "run")
    assert main(["report", run, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert "ended by megabatches" in page
    assert "simulated</td>" not in page
    assert f"{rows[-1]['metrics']['P@1']:.4f}" in page
    capsys.readouterr()
    assert main(["report", run, "--at", "0", "--json"]) == 0
    reached = json.loads(capsys.readouterr().out)["runs"]["run"]
    first = next(row for row in rows if row["metrics"])
    assert (reached["megabatch"], reached["wall_s"]) == (first["megabatch"], first["wall_s"])


def test_a_network_of_this_process_is_that_of_one_worker(trained):
    files = {name: str(trained / f"{name}.txt") for name in ("train", "test")}
    run = daskxml.train(trained / "run" / "run.toml", workers=0, **files)
    there = daskxml.load(trained / "run")
    for name, array in run.model.parameters.items():
        np.testing.assert_array_equal(array, there.parameters[name])
    assert [row["metrics"] for row in run.history] == [
        row["metrics"] for row in history(trained / "run")
    ]


def test_a_run_goes_on_by_its_own_run_file(trained, capsys):
    before = history(trained / "run")
    run = str(trained / "run")
    assert main(["train", "--resume", run, "--set", "training.megabatches=5", "--workers=0"]) == 0
    after = history(trained / "run")
    assert after[:4] == before
    assert [row["megabatch"] for row in after] == [1, 2, 3, 4, 5]
    assert "ended by  megabatches" in capsys.readouterr().out
    assert len(json.loads((trained / "run" / "environment.json").read_text())) == 2  # its starts


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--train", "{}/absent.txt"], "{}/absent.txt: no such file; check the path"),
        (["--train", "{}/absent-*.txt"], "{}/absent-*.txt: no file matches; check the pattern"),
        (["--train", "{}"], "{}: is a directory; name its files, as in DIR/*.txt"),
        (["--train", "file://{}/absent.txt"], "file://{}/absent.txt: no such file; check the path"),
        (["{}/a.txt", "{}/absent.txt"], "{}/absent.txt: no such file; check the path"),
        (["--train", "{}/*.txt", "{}/absent.txt"], "{}/absent.txt: no such file; check the path"),
        (["--train", "{}/a.txt", "--test", "{}/b.txt"], "{}/b.txt: no such file; check the path"),
        (["--train", "{}/a.txt", "--set=data.label_names={}/c"], "{}/c: no such file; check"),
        (["--train", "{}/a.txt", "--set=data.weights={}/c"], "{}/c: no such file; check the path"),
        (["--train", "{}/absent.txt", "--scheduler", "nonsense"], "nonsense: not a scheduler"),
    ],
)  # fmt: skip
def test_files_of_this_machine_are_looked_for_before_a_worker_starts(
    options, problem, tmp_path, monkeypatch, capsys
):
    def started(*_):
        pytest.fail("the local cluster was started")

    monkeypatch.setattr(connection, "local_cluster", started)
    (tmp_path / "a.txt").write_text("0 1:1\n")
    given = [option.format(tmp_path) for option in options]
    assert main(["train", "adaptive-sgd", *given, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("daskxml: error: " + problem.format(tmp_path))


@pytest.fixture
def tags(tmp_path):
    """A table of texts with labels."""
    path = tmp_path / "tags.jsonl"
    texts = [f"a {colour} {thing}" for colour in ("red", "green") for thing in ("apple", "bus")]
    rows = [{"text": text, "labels": text.split()[1:]} for text in texts * 20]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.parametrize("command", [
    ["train", "best", "{}"],
    ["train", "network", "{}", "--set=model.hidden=[8]", "--set=training.epochs=40",
     "--workers=0", "--device=cpu"],
    ["simulate", "best", "--train", "{}", "--speeds=1,1"],
])  # fmt: skip
def test_a_table_of_texts_goes_in_as_it_is(command, tags, tmp_path, capsys):
    out = str(tmp_path / "run")
    given = [argument.format(tags) for argument in command]
    assert main([*given, "--set=data.validation=0.25", "--set=text.min_df=2", "--out", out]) == 0
    (found,) = daskxml.load(out).predict_text(["green bus"], k=2)
    assert sorted(found) == ["bus", "green"]
    assert main(["calibrate", out, "--json"]) == 0  # on the rows that were held out, read again
    capsys.readouterr()


@pytest.mark.filterwarnings("default")
def test_labels_that_training_has_not_seen_are_missed_everywhere(tags, tmp_path, capsys):
    out, other, test = str(tmp_path / "run"), str(tmp_path / "other"), tmp_path / "test.jsonl"
    rows = [json.loads(line) for line in Path(tags).read_text().splitlines()[:40]]
    for row in rows[:9]:
        row["labels"] += ["ripe", "new"][: 1 + (row is rows[0])]
    test.write_text("\n".join(map(json.dumps, rows)))
    told = "daskxml: warning: the model does not know 2 labels of the rows: "
    assert main(["train", "best", tags, "--test", str(test), "--out", out]) == 0
    assert capsys.readouterr().err.count(f"{told}left out of the metrics of this training") == 1
    assert main(["evaluate", out, str(test), "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert shown.err == f"{told}they count as missed\n"
    given = [row["text"] for row in rows], [row["labels"] for row in rows]
    same = daskxml.XMLClassifier.load(out)
    metrics = ("P@1", "P@3", "nDCG@5", "PSP@1", "PSnDCG@5", "recall@5")
    assert all(daskxml.make_scorer(name)(same, *given) == found[name] for name in metrics)
    assert found["recall@5"] < 1.0
    assert main(["calibrate", out, str(test), "--out", other]) == 0
    assert capsys.readouterr().err == f"{told}left out\n"
    assert main(["verify", out, "--data", str(test)]) == 0  # its history leaves them out
    assert daskxml.load(other).header.decisions.measured["rows"] == 40


def test_settings_of_texts_need_texts(tags, tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    rows.write_text("labels,text,words\n3,1,2\n")  # counts, whatever the column is called
    for path, setting in ((tags, "text.column=body"), (rows, "text.min_df=2")):
        assert main(["train", str(path), "--set", setting, "--out", str(tmp_path / "run")]) == 2
        assert "of texts, for which there is a section [text]" in capsys.readouterr().err
    assert main(["train", str(rows), "--set=training.trees=1", "--out", str(tmp_path / "run")]) == 0


def test_documents_are_inspected(tags, capsys):
    assert main(["inspect", tags]) == 0
    shown = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    assert shown["format"] == "documents in JSON lines, features from 0"
    assert [shown[name] for name in ("rows", "features", "labels")] == [
        "80", "4 (4 seen)", "4 (4 seen)"
    ]  # fmt: skip


# ---------------------------------------------------- the runs of a scheduler


def lines_of_table(record: RunHandle) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=80).print(runs_table([record]))
    return text.getvalue().splitlines()


def test_a_table_of_runs_cuts_nothing_off_on_a_small_terminal() -> None:
    record = RunHandle(
        run="95a30726", name="adaptive-sgd", strategy="adaptive-sgd", state="ended by megabatches",
        is_over=True, is_detached=False, begun_at_s=0.0, megabatches=12_345,
        metrics={"P@1": 0.61234}, out="/shared/experiments/of-this-month/first",
    )  # fmt: skip
    lines = lines_of_table(record)
    assert lines[2].startswith("95a30726  adaptive")
    assert "12,345  0.6123" in lines[2]
    start = lines[1].index("directory")
    assert "".join(line[start:].strip() for line in lines[2:]) == record.out


def test_why_a_run_failed_does_not_make_the_table_long() -> None:
    record = RunHandle(
        run="95a30726", name="", strategy="elastic", state=f"failed: {'the data are bad ' * 9}",
        is_over=True, is_detached=True, begun_at_s=0.0,
    )  # fmt: skip
    (line,) = lines_of_table(record)[2:]
    assert line.split()[:3] == ["95a30726", "elastic", "failed"]


def test_a_run_is_found_by_its_name_its_directory_and_the_name_of_that(tmp_path, monkeypatch):
    places = {"a1": ("first", tmp_path / "runs/first"), "b2": ("", tmp_path / "runs/second"),
              "c3": ("first", tmp_path / "other/third"), "d4": ("", "")}  # fmt: skip
    handles = [
        RunHandle(run=run, name=name, out=str(out), strategy="elastic", state="", is_over=False,
                  is_detached=True, begun_at_s=0.0)
        for run, (name, out) in places.items()
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for given, run in (("b2", "b2"), ("runs/first", "a1"), (f"{tmp_path}/runs/second", "b2"),
                       ("second", "b2"), ("third", "c3")):  # fmt: skip
        assert find_run(given, handles).run == run
    with pytest.raises(ClusterError, match="first: several runs have this name; take one of: a1"):
        find_run("first", handles)
    with pytest.raises(ClusterError, match="fourth: no such run on this scheduler"):
        find_run("fourth", handles)
