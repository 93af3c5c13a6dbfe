"""Documents on a real cluster: rows, models that take raw text, and what is lost in between."""

import json
import os
import signal
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
from daskxml.core.errors import ConfigError, InputError
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


@pytest.mark.slow
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


def test_labels_of_test_documents_alone_are_told(
    client: Client, files: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "test.jsonl").write_text('{"text": "a red bus", "labels": ["red", "new"]}\n')
    given = {"train": files["csv"], "test": tmp_path / "test.jsonl"}
    told = r"does not know 1 label of the rows: left out of the metrics"
    for place in (client, None):
        with pytest.warns(UserWarning, match=told):
            daskxml.train(TREE, client=place, **given)


def test_weights_of_documents_are_in_a_file_of_their_own(client: Client, tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": TEXTS, "labels": [",".join(row) for row in NAMES]})
    train, weights = tmp_path / "train.csv", np.ones(len(TEXTS))
    frame.assign(sample_weight=weights).to_csv(train, index=False)
    for place in (client, None):
        with pytest.raises(ConfigError, match="a column 'sample_weight' beside documents"):
            daskxml.train(TREE, client=place, train=train)
    frame.to_csv(train, index=False)
    np.save(tmp_path / "weights.npy", weights[:-1])
    own = {"data.weights": str(tmp_path / "weights.npy")}
    for place in (client, None):
        with pytest.raises(InputError, match=r"[\d,]+ weights for [\d,]+ rows"):
            daskxml.train(TREE, client=place, train=train, overrides=own)


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


@pytest.mark.slow
def test_the_documents_of_a_run_file(
    client: Client, files: dict[str, Path], tmp_path: Path
) -> None:
    run_file = TREE | {"text": {"lowercase": False, "min_df": 2}}
    given = {"train": files["jsonl"], "test": files["csv"], "client": client}
    stages: list[Any] = []

    def hear(event: Any) -> None:
        stages.extend(event["stages"] if event["kind"] == "stages" else ())

    run = daskxml.train(run_file, **given, out=tmp_path / "run", on_event=hear)
    assert run.metrics["P@1"] > 0.5
    named = [stage["name"] for stage in stages]
    assert named[:4] == ["read", "count words", "vectorize", "read test"]
    assert named[4] == "vectorize test"
    held = run_file | {"data": {"validation": 0.2}}
    name = daskxml.launch(held, client=client, train=files["jsonl"], out=tmp_path / "left")
    assert daskxml.attach(name, client=client).follow().model.header.vectorizer is not None
    daskxml.attach(name, client=client).stop(forget_it=True)
    assert held_out_rows([tmp_path / "left"], "FILE").rows == round(0.2 * len(TEXTS))
    matrices = daskxml.Matrices(np.eye(2), np.eye(2))
    for place in (client, None):
        with pytest.raises(daskxml.ConfigError, match="training rows: no column 'text' of texts"):
            daskxml.train(run_file, client=place, train=matrices)
        with pytest.raises(daskxml.ConfigError, match="are documents, test rows are none: give"):
            daskxml.train(run_file, client=place, train=files["jsonl"], test=matrices)
    with pytest.raises(daskxml.ConfigError, match=r"\[text\] is for files"), \
            Pipeline(client=client) as pipe:  # fmt: skip
        pipe.train(run_file, pipe.read_texts(files["jsonl"]))
    with pytest.raises(daskxml.ConfigError, match="removed: files are inspected for documents"):
        daskxml.train(TREE | {"pipeline": {"stages": ["a:b"]}}, train=files["jsonl"])
