"""Where a run takes place when nobody names a cluster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask.array as da
import numpy as np
import psutil
import pytest
import scipy.sparse

import daskxml
from daskxml.api.collections import find_rows
from daskxml.api.run import Job, resolve_run
from daskxml.api.train import needs_cluster
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml

ROWS = SyntheticSpec(rows=300, test_rows=50, features=80, labels=40, seed=3)


@pytest.fixture(scope="module")
def matrices():
    return [(to_scipy(part.features), to_scipy(part.labels)) for part in generate(ROWS)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return [str(write_xml(folder / f"{part}.txt", ROWS, part)) for part in ("train", "test")]


def started(config, **overrides):
    X = np.eye(4)
    job = Job.of(config, train=(X, X), overrides=overrides, find=find_rows)
    return needs_cluster(job)


@pytest.mark.parametrize(
    ("config", "overrides", "needs"),
    [
        ("best", {}, False),
        ("tree", {"cluster.threads": 2, "cluster.device": "cpu"}, False),
        ("tree", {"cluster.workers": 2}, True),
        ("tree", {"cluster.protocol": "tcp"}, True),
        ("adaptive-sgd", {}, len(os.sched_getaffinity(0)) >= 4),
        ("adaptive-sgd", {"cluster.workers": 1}, True),
        ("hogwild", {}, True),
    ],
)
def test_no_cluster_is_needed_unless_one_is_asked_for(config, overrides, needs):
    assert started(config, **overrides) == needs


def test_what_needs_a_cluster_does_not_go_with_no_workers():
    X = da.eye(8, chunks=4)
    for given, problem in [
        ({"train": (X, X)}, "rows in Dask collections need a cluster: call daskxml.train without"),
        ({"train": X}, "rows in Dask collections need a cluster"),
        ({"train": "a.txt", "scheduler": "tcp://a:1"}, "give workers=, for a local cluster"),
        ({"train": "a.txt", "overrides": ["cluster.pools=2"]}, "pools need a cluster: leave work"),
    ]:
        with pytest.raises(daskxml.ConfigError, match=problem):
            daskxml.train("network", workers=0, **given)


@pytest.mark.parametrize("given", [
    lambda rows, file: (rows[0], rows[1]), lambda rows, file: (rows,), lambda rows, file: (file,),
    lambda rows, file: ("tree", *rows), lambda rows, file: ({"training": {"trees": 1}}, file),
])  # fmt: skip
def test_rows_come_after_the_run_file_or_without_one(given, matrices, files):
    once = {"training.trees": 1, "model.kind": "trees", "model.powers": [1.0]}
    named = daskxml.train("tree", train=files[0], workers=0, overrides=once).model
    found = daskxml.train(*given(matrices[0], files[0]), workers=0, overrides=once).model
    np.testing.assert_array_equal(named.predict(matrices[1][0]).toarray(),
                                  found.predict(matrices[1][0]).toarray())  # fmt: skip


def test_rows_given_twice_and_wrong_overrides_are_refused(matrices, files):
    with pytest.raises(daskxml.ConfigError, match="given twice"):
        daskxml.train(*matrices[0], train=files[0])
    with pytest.raises(daskxml.ConfigError, match=r"^overrides: training\.trees: trees = '4'"):
        daskxml.train(*matrices[0], overrides={"training.trees": "4"})


@pytest.mark.parametrize("config", ["tree", "network"])
def test_no_process_is_started(config, matrices, tmp_path):
    seen = []

    def listen(event):
        seen.append((event["kind"], len(psutil.Process().children())))

    train, test = matrices
    run = daskxml.train(
        config, train=train, test=test, out=tmp_path / "run", on_event=listen, workers=0
    )
    assert {count for _, count in seen} == {len(psutil.Process().children())}
    assert run.metrics["P@1"] > 0.2
    loaded = daskxml.load(tmp_path / "run")
    pairs = zip(*(model.predict_top_k(test[0], 3) for model in (loaded, run.model)), strict=True)
    for found, expected in pairs:
        np.testing.assert_array_equal(found, expected)


def test_a_run_goes_on_with_the_same_trees(matrices, tmp_path):
    """Written, stopped and resumed in this process, or on a cluster: the same bits."""
    train, test = matrices
    whole = daskxml.train("best", train=train, test=test)
    stop = {"on_megabatch": lambda row: daskxml.STOP if row["megabatch"] == 2 else None}
    half = daskxml.train("best", train=train, test=test, out=tmp_path / "run", **stop)
    assert len(half.history) == 2
    rest = daskxml.train("best", train=train, test=test, resume=tmp_path / "run")
    assert [row["megabatch"] for row in rest.history] == [1, 2, 3, 4]
    for name, array in whole.model.parameters.items():
        np.testing.assert_array_equal(array, rest.model.parameters[name])


def test_a_run_is_not_resumed_as_another(matrices, tmp_path):
    """What would make what it has done another run's is refused; the rest may change."""
    train, _ = matrices
    out, short = tmp_path / "run", {"training.epochs": 1, "strategy.batch_max": 64}
    daskxml.train("network", train=train, out=out, overrides=short, workers=0)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for setting, value in (
        ("model.loss", "softmax"), ("model.hidden", [7]), ("optimizer.on_merge", "reset"),
        ("run.seed", 8), ("data.normalize", "none"), ("strategy.batch_max", 16),
        ("strategy.name", "adaptive-sgd"),
    ):  # fmt: skip
        section, _, name = setting.partition(".")
        with pytest.raises(ConfigError, match=rf"{name}: the run began .* leave \[{section}\] as"):
            daskxml.train("network", train=train, resume=out, overrides=short | {setting: value})
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    longer = short | {"training.epochs": 3, "strategy.lr": 0.2}
    daskxml.train("network", train=train, resume=out, overrides=longer, workers=0)
    assert not daskxml.verify(out).disagreements


def test_test_rows_have_the_columns_of_training_rows(matrices):
    train, (X, Y) = matrices
    for test, name, columns in (((X[:, :5], Y), "X", 5), ((X, Y[:, :3]), "Y", 3)):
        with pytest.raises(InputError, match=f"test: {name} has {columns} columns, that of train"):
            daskxml.train("tree", train=train, test=test, workers=0)


@pytest.mark.parametrize(
    ("config", "number"),
    [("tree", "trees"), pytest.param("network", "epochs", marks=pytest.mark.slow)],
)
def test_ctrl_c_ends_a_run_with_what_is_under_way(config, number, files, tmp_path):
    train, test = files
    command = [sys.executable, "-m", "daskxml", "train", config, train, "--test", test]
    command += ["--workers=0", "--set=checkpoint.every=1", "--set=checkpoint.keep=100"]
    command += [f"--set=training.{number}=100000", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        history = tmp_path / "run" / "history.jsonl"
        while not (history.exists() and history.read_text().count("\n") >= 2):
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"--resume {tmp_path / 'run'}" in shown
    trees = len(history.read_text().splitlines())
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))) == trees
    assert daskxml.load(tmp_path / "run").spec.labels == ROWS.labels


@pytest.mark.parametrize("config", ["tree", "network"])
@pytest.mark.parametrize(
    "place", [0, 9, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 6))]
)
def test_ctrl_c_is_a_request_wherever_it_comes(config, place, files, tmp_path):
    """Also between two statements of the loop that waits for it."""
    train, test = files
    number = "trees" if config == "tree" else "epochs"
    many = {f"training.{number}": 100_000, "checkpoint.every": 0, "cluster.workers": 0}
    lines = iter(range(100_000))
    loop = (
        {"tree": "_follow", "network": "run"}[config],
        f"{'fit_run' if config == 'tree' else 'driver'}.py",
    )

    def traced(frame, event, argument):
        code = frame.f_code
        return each_line if (code.co_name, Path(code.co_filename).name) == loop else None

    def each_line(frame, event, argument):
        if event == "line" and next(lines) == 20 + place:
            signal.raise_signal(signal.SIGINT)
        return each_line

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        run = daskxml.train(config, train=train, test=test, out=tmp_path / "run", overrides=many)
    finally:
        sys.settrace(before)
    assert run.reason == "interrupt"
    assert len(run.history) >= 1


# ---------------------------------------------------- what may stand for rows


RUN = {"training": {"epochs": 1}}


@pytest.mark.parametrize(
    "given",
    [np.eye(3), scipy.sparse.eye_array(3), (np.eye(3), np.eye(3)), [1], ["a", None], 5, {"a": 1}],
    ids=["dense", "sparse", "pair", "number", "none", "no list", "dictionary"],
)  # fmt: skip
def test_what_is_no_path_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"^test: must be paths, or \(X, Y\)"):
        resolve_run(RUN, "/rows", given, [])


def test_paths_of_any_kind_become_absolute() -> None:
    given = (Path("/b") / name for name in ("1", "2"))
    data = resolve_run(RUN, given, "s3://a/b", []).data
    assert data.train == ("/b/1", "/b/2")
    assert data.test == ("s3://a/b",)
    assert resolve_run(RUN, "rows", None, []).data.train == (str(Path.cwd() / "rows"),)


@pytest.mark.parametrize("name", ["weights", "feature_names", "label_names"])
def test_files_beside_the_rows_become_absolute(name: str) -> None:
    data = resolve_run(RUN, "rows", None, [f"data.{name}=beside"]).data
    assert getattr(data, name) == str(Path.cwd() / "beside")
