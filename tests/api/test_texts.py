"""Documents on a real cluster: rows, models that take raw text, and what is lost in between."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from distributed import Client
from sklearn.feature_extraction.text import TfidfVectorizer

import daskxml
from daskxml.api.pipeline import Pipeline
from daskxml.cli import main
from daskxml.cli.data import held_out_rows
from daskxml.data.rows import to_scipy
from daskxml.models.store import ModelHeader

THINGS = {"apple": "fruit", "pear": "fruit", "plum": "fruit", "van": "car", "bus": "car"}
COLOURS = ["red", "green", "blue"]
TEXTS = [f"a {c} {thing}, number {i}" for i in range(4) for thing in THINGS for c in COLOURS]
NAMES = [[THINGS[text.split()[2].strip(",")], text.split()[1]] for text in TEXTS]
FAST = {"hidden": [16]}
RUN: dict[str, Any] = {
    "model": FAST,
    "strategy": {"batch_max": 16, "megabatch_batches": 6, "lr": 4.0},
    "training": {"megabatches": 30},
    "cluster": {"threads": 1},
}


TREE: dict[str, Any] = {"model": {"kind": "trees"}, "training": {"trees": 1}}  # the same each time


def records(texts: list[str] = TEXTS) -> list[dict[str, Any]]:
    return [{"text": t, "labels": names} for t, names in zip(texts, NAMES, strict=True)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("texts")
    found = {kind: folder / f"texts.{kind}" for kind in ("jsonl", "csv", "parquet", "txt")}
    found["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in records()))
    lines = [f'"{text}","{",".join(names)}"\n' for text, names in zip(TEXTS, NAMES, strict=True)]
    found["csv"].write_text("text,labels\n" + "".join(lines))
    pq.write_table(pa.Table.from_pylist(records()), found["parquet"])
    found["txt"].write_text("\n".join(TEXTS) + "\n")
    return found


def gathered(client: Client, rows: Any) -> tuple[Any, Any]:
    parts = client.gather(rows.partitions)
    stacked = [[to_scipy(part.features), to_scipy(part.labels)] for part in parts]
    return tuple(sp.vstack(each) for each in zip(*stacked, strict=True))


def vectorize(
    documents: Any, labels: Any = None, *, client: Client, like: Any = None, column: str = "text",
    **settings: Any,
) -> Any:  # fmt: skip
    """Return rows of documents, which stay on the workers."""
    with Pipeline(client=client) as pipe:
        rows = pipe.vectorize(pipe.read_texts(documents, labels, column=column), like, **settings)
        rows.made()
        return rows


def test_every_input_gives_the_rows_of_scikit_learn(client: Client, files: dict[str, Path]) -> None:
    chosen = {"ngram_range": (1, 2), "min_df": 2, "sublinear_tf": True}
    expected = TfidfVectorizer(**chosen).fit_transform(TEXTS)
    frame = pd.DataFrame({"body": TEXTS, "labels": [",".join(row) for row in NAMES]})
    bag = db.from_sequence(records(), npartitions=4)
    given = {
        "list": (TEXTS, NAMES, "text"),
        "bag": (bag.to_dataframe(), None, "text"),
        "frame": (dd.from_pandas(frame, npartitions=3), None, "body"),
        **{kind: (path, None, "text") for kind, path in files.items()},
    }
    labels = sp.csr_array([[name in row for name in sorted({*COLOURS, "fruit", "car"})]
                           for row in NAMES])  # fmt: skip
    for name, (source, names, column) in given.items():
        rows = vectorize(source, names, client=client, column=column, **chosen)
        X, Y = gathered(client, rows)
        np.testing.assert_allclose(X.toarray(), expected.toarray(), rtol=1e-6, err_msg=name)
        if name != "txt":
            assert (Y.toarray() == labels.toarray()).all(), name


def test_documents_of_one_process_are_the_rows_of_a_cluster(
    client: Client, files: dict[str, Path]
) -> None:
    config = {"text": {"ngram_range": [1, 2], "min_df": 2}, **TREE}
    config["training"] = {"trees": 1, "class_weight": {"fruit": 2.0}}
    paths = {"train": files["csv"], "test": files["jsonl"]}
    there, here = (daskxml.train(config, client=c, **paths) for c in (client, None))
    assert here.model.header.vectorizer == there.model.header.vectorizer
    assert here.model.header.label_names == there.model.header.label_names
    assert here.metrics == there.metrics
    arrays = zip(here.model.parameters.items(), there.model.parameters.items(), strict=True)
    assert all(a == b and np.array_equal(x, y) for (a, x), (b, y) in arrays)


def test_a_model_of_texts_takes_texts(
    client: Client, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = vectorize(files["jsonl"], client=client)
    test = vectorize(["a red bus", "a blue bike"], [["red"], ["new"]], client=client,
                             like=train)  # fmt: skip
    model = daskxml.train(TREE, client=client, train=train, test=test, out=tmp_path / "run").model
    held = daskxml.load(tmp_path / "run")
    assert held.header == model.header
    assert held.header.feature_names == train.names.result().features
    texts = ["a yellow bus", "one green plum"]
    found = held.predict_text(texts, k=2)
    assert ("car" in found[0], "fruit" in found[1]) == (True, True)
    with pytest.warns(UserWarning, match="1 of 2 texts have no word that the model knows: they"):
        assert [len(row) for row in held.predict_text(["", "bus"], k=2)] == [0, 2]
    with pytest.raises(daskxml.InputError, match="document 0 is 3: give texts"):
        held.predict_text([3])

    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, "?"]))
    lines = tmp_path / "raw.txt"
    lines.write_text("\n".join([*texts, "?"]))
    expected = tmp_path / "expected.jsonl"
    for source in (raw, lines):
        out = tmp_path / f"{source.suffix[1:]}.jsonl"
        command = ["predict", str(tmp_path / "run"), str(source), "--top-k", "2"]
        assert main([*command, "--out", str(out)]) == 0
        told = capsys.readouterr().err
        assert told.startswith("1 of 3 texts have no word that the model knows")
        first, second, _ = map(json.loads, out.read_text().splitlines())
        assert ("car" in first["labels"], "fruit" in second["labels"]) == (True, True)
        on_cluster = [*command, "--out", str(expected), "--scheduler", client.scheduler.address]
        assert main(on_cluster) == 0
        assert "1 of 3 texts" in capsys.readouterr().err
        assert expected.read_bytes() == out.read_bytes()
    assert main(["evaluate", str(tmp_path / "run"), str(files["csv"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["P@1"] > 0.9
    raw.write_text('{"title": "a bus"}\n')
    assert main(["predict", str(tmp_path / "run"), str(raw), "--out", str(out)]) == 2
    assert "raw.jsonl:1: no column 'text'; it has 'title'" in capsys.readouterr().err

    estimator = daskxml.XMLClassifier.load(tmp_path / "run")
    assert "car" in estimator.predict_labels(["a yellow bus"], k=2)[0]
    header = ModelHeader(spec=held.spec, training_rows=1)
    plain = daskxml.Model(header, held.parameters, held.label_counts)
    with pytest.raises(daskxml.ConfigError, match="the model was not trained on texts: give rows"):
        plain.predict_text(["red"])


def test_the_dask_classifier_takes_rows_of_texts(client: Client) -> None:
    rows = vectorize(TEXTS, NAMES, client=client)
    classifier = daskxml.DaskXMLClassifier(
        "network", client=client, hidden=16, batch_size=16, epochs=12, learning_rate=0.05
    )
    classifier.fit(rows, eval_set=rows)
    assert "car" in classifier.predict_labels(["some yellow van"], k=2)[0]
    assert classifier.evals_result_["validation"]["P@1"]
    with pytest.raises(daskxml.InputError, match="leave y out"):
        classifier.fit(rows, NAMES)


def shouted(texts: list[str], labels: list[Any], marker: str) -> tuple[list[str], list[Any]]:
    """Ends its worker when it is called first."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [text.upper() for text in texts], labels


@pytest.mark.slow
def test_a_pipeline_of_texts_is_done_once_for_two_trainings_and_a_lost_worker(
    client: Client, files: dict[str, Path], tmp_path: Path
) -> None:
    bag = db.from_sequence(records(), npartitions=6)
    folder, stages = tmp_path / "pipe", []

    def hear(event: Any) -> None:
        stages.extend(event["stages"] if event["kind"] == "stages" else ())

    for _ in range(2):
        with Pipeline(folder, client=client, on_event=hear) as pipe:
            documents = pipe.map(
                shouted, pipe.read_texts(bag.to_dataframe()), marker=str(tmp_path / "killed")
            )
            rows = pipe.drop_rare(pipe.vectorize(documents, min_df=2), least=2)
            first = pipe.train(TREE, rows, name="first")
            second = pipe.train(RUN, rows, name="second")
            if not list(folder.glob("first-*")):
                assert len(rows.partitions) == 6
                client.wait_for_workers(2, timeout=60)
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
            models = [stage.result().model for stage in (first, second)]
    assert [stage["name"] for stage in stages[-2:] if stage["outcome"] == "kept"] == [
        "first", "second",
    ]  # fmt: skip
    assert "car" in models[0].predict_text(["THE VAN"], k=2)[0]
    once = ("read texts", "shouted", "count words", "vectorize", "drop rare labels")
    done_once = [stage["name"] for stage in stages if stage["outcome"] == "done"]
    assert {name: done_once.count(name) for name in once} == dict.fromkeys(once, 1)
    assert sum(stage["rows"] for stage in stages if stage["name"] == "vectorize") >= len(TEXTS)


def test_wrong_documents_are_one_line(client: Client, tmp_path: Path) -> None:
    frame = dd.from_pandas(pd.DataFrame({"body": ["red", None]}), npartitions=1)
    null = tmp_path / "null.jsonl"
    null.write_text('{"text": "red"}\n{"text": null}\n')
    number = tmp_path / "number.jsonl"
    number.write_text('{"text": 3}\n')
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (frame, {}, "no column 'text'; it has 'body'"),
        (frame, {"column": "body"}, "^stage 'read texts', partition 0: row 1: 'body' is null"),
        (["red", None], {}, "document 1 is None: give texts"),
        (["red"], {"labels": [[], []]}, "1 texts, but labels of 2: give each text"),
        (["red"], {"labels": [[None]]}, "document 0: the label None: give names"),
        (["", "?"], {}, "none of 2 documents has a word"),
        (["red"], {"ngrams": 3}, "ngrams: is no setting of texts"),
        (db.from_sequence(["red"]), {}, "documents are a Bag: give files, .*bag.to_dataframe"),
        (null, {}, "null.jsonl:2: .*'text' is null"),
        (number, {}, "number.jsonl:1: .*'text' holds no texts"),
        (tmp_path / "no.jsonl", {}, "no such file"),
        (3, {}, "documents are a int: give files, a list of texts"),
        (frame, {"labels": [["a"]], "column": "body"}, "labels are for a list of texts"),
    ]
    for source, settings, problem in cases:
        with pytest.raises(daskxml.DaskxmlError, match=problem) as raised:
            vectorize(source, client=client, **settings)
        assert "\n" not in str(raised.value)


@pytest.fixture
def of_stages(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A run file with stages, one of them of a module in the working directory."""
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("own_stages", None)
    Path("own_stages.py").write_text(
        "def shouted(texts, labels):\n    return [text.upper() for text in texts], labels\n"
    )
    return {
        **RUN,
        "data": {"train": [str(files["jsonl"])], "test": [str(files["csv"])]},
        "pipeline": {"stages": ["own_stages:shouted", "vectorize"]},
        "text": {"lowercase": False, "min_df": 2},
    }


def test_the_stages_of_a_run_file(
    client: Client,
    files: dict[str, Path],
    of_stages: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_file = {name: values for name, values in of_stages.items() if name != "strategy"} | TREE
    stages: list[Any] = []

    def hear(event: Any) -> None:
        stages.extend(event["stages"] if event["kind"] == "stages" else ())

    run = daskxml.train(run_file, client=client, out=tmp_path / "run", on_event=hear)
    assert "BUS" in run.model.header.feature_names
    assert run.metrics["P@1"] > 0.5
    assert [stage["name"] for stage in stages[:3]] == ["read", "shouted", "count words"]
    stages.clear()
    with Pipeline(client=client, on_event=hear) as pipe:
        texts = pipe.read_texts(files["jsonl"])
        runs = [pipe.train(run_file, texts, name=name, overrides=more)
                for name, more in (("first", []), ("second", ["model.beam=5"]))]  # fmt: skip
        assert all(stage.result().history for stage in runs)
        done = [stage["name"] for stage in stages if stage["outcome"] == "done"]
        assert [done.count(name) for name in ("shouted", "count words", "vectorize")] == [1, 1, 1]
        shared = [stage["name"] for stage in stages if stage["outcome"] == "shared"]
        assert shared == ["shuffle for second"]
    cases = [
        (
            {"stages": ["no_such:function", "vectorize"]},
            "'no_such:function': No module named 'no_such': put",
        ),
        ({"stages": ["own_stages:no", "vectorize"]}, "'own_stages:no': .*no attribute 'no'"),
        (
            {"stages": ["vectorise", "vectorize"]},
            "must be 'vectorize' or a function, 'module:function'",
        ),
        ({"stages": ["own_stages:shouted"]}, r"\[text\] is for documents: add 'vectorize'"),
    ]
    for section, problem in cases:
        with pytest.raises(daskxml.ConfigError, match=problem):
            daskxml.train({**run_file, "pipeline": section}, client=client)
    of_texts, matrices = {**TREE, "text": {"min_df": 2}}, daskxml.Matrices(np.eye(2), np.eye(2))
    for place in (client, None):
        with pytest.raises(daskxml.ConfigError, match="training rows: no column 'text' of texts"):
            daskxml.train(of_texts, client=place, train=matrices)
    with pytest.raises(daskxml.ConfigError, match=r"\[pipeline\] stages are done with the files"):
        daskxml.train(run_file, client=client, train=daskxml.Matrices(np.eye(2), np.eye(2)))
    strangers = Path(run.out or "")
    Path("own_stages.py").write_text("print(1 / 0)\n")
    sys.modules.pop("own_stages")
    problem = r"fails: ZeroDivisionError: division by zero \(.*/own_stages.py:1\)"
    with pytest.raises(daskxml.ConfigError, match=problem):
        daskxml.train(run_file, client=client)
    Path("own_stages.py").write_text("open('was-run', 'w').close()\n")
    only_the_file = rf"{strangers}/run.toml: \[pipeline\] stages would run code"
    for place in ({"resume": strangers}, {"out": tmp_path / "another"}):
        with pytest.raises(daskxml.ConfigError, match=only_the_file):
            daskxml.train(strangers / "run.toml", client=client, **place)
    with pytest.raises(daskxml.ConfigError, match=only_the_file), Pipeline(client=client) as pipe:
        pipe.train(strangers / "run.toml", pipe.read_texts(files["jsonl"])).result()
    assert main(["train", "--resume", str(strangers), "--workers", "1"]) == 2
    assert not Path("was-run").exists()
    named = f"pipeline.stages={run_file['pipeline']['stages']}"
    assert main(["train", "--resume", str(strangers), "--workers", "1", "--set", named]) == 2
    assert Path("was-run").exists()
    shown = capsys.readouterr().err.splitlines()
    assert f'add --set "{named}"' in shown[0]
    assert "own_stages:shouted" in shown[1]


@pytest.mark.slow
def test_the_stages_of_detached_runs(
    client: Client, of_stages: dict[str, Any], tmp_path: Path
) -> None:
    run_file = of_stages
    held = {"data": {**run_file["data"], "validation": 0.2}}
    name = daskxml.launch(run_file | held, client=client, out=tmp_path / "texts")
    assert "BUS" in daskxml.attach(name, client=client).follow().model.header.feature_names
    daskxml.attach(name, client=client).stop(forget_it=True)
    with pytest.raises(daskxml.ConfigError, match="on rows that are in no files: give FILE"):
        held_out_rows([tmp_path / "texts"], "FILE")


def test_the_example_of_the_documentation(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[2] / "docs/examples/text_tags.py"
    model = runpy.run_path(str(example))["main"](client, tmp_path)
    assert set(model.predict_text(["some green pear"], k=2)[0]) == {"green", "fruit"}
    told = capsys.readouterr().out
    assert [told.count(f"{name}: ") for name in ("count words", "vectorize")] == [1, 1]
