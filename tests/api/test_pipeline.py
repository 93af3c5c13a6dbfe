"""A pipeline on a real cluster: what is done once and what twice, and what is lost in between."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from distributed import Client

import daskxml
from daskxml.api.pipeline import Pipeline
from harness.clusters import local_client


def halve(X: Any, Y: Any, factor: float = 0.5) -> tuple[Any, Any]:
    return X * factor, Y


def slowly(X: Any, Y: Any) -> tuple[Any, Any]:
    time.sleep(0.3)
    return X, Y


def wrong(X: Any, Y: Any) -> Any:
    return 1 / 0


def careless(X: Any, Y: Any) -> Any:
    return X


def count_rows(X: Any, Y: Any) -> int:
    return int(X.shape[0])


def unless(X: Any, Y: Any, marker: str) -> tuple[Any, Any]:
    """Fails for some partitions until a file is there."""
    if X.shape[0] % 2 and not Path(marker).exists():
        raise ValueError("not yet")
    return X, Y


def vocabulary(X: list[str], Y: Any) -> list[str]:
    return sorted({word for text in X for word in text.split()})


def union(found: list[list[str]]) -> list[str]:
    return sorted({word for words in found for word in words})


def word_counts(X: list[str], Y: Any, words: list[str]) -> tuple[Any, Any]:
    dense = [[text.split().count(word) for word in words] for text in X]
    return scipy.sparse.csr_matrix(np.array(dense, np.float32)), Y


def one_hot(X: Any, Y: Any, names: list[str]) -> tuple[Any, Any]:
    return X, scipy.sparse.csr_matrix([[name in row for name in names] for row in Y], dtype="f4")


class Heard(list[dict[str, Any]]):
    """The stages of which a pipeline has told."""

    def __call__(self, event: Any) -> None:
        if event["kind"] == "stages":
            self.extend(event["stages"])

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((stage["name"], stage["outcome"]) for stage in self)


@pytest.fixture
def short(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "training": {"megabatches": 2}, "run": {"name": "first"}}


def build(pipe: Pipeline, data: dict[str, Path], short: dict[str, Any]) -> dict[str, Any]:
    rows = pipe.map(halve, pipe.read(data["train"]), factor=0.25)
    kept, held = pipe.split(pipe.drop_rare(rows, least=5), 0.2)
    first = pipe.train(short, kept, held)
    second = pipe.train(short, kept, held, name="second", overrides=["strategy.lr=0.1"])
    return {"kept": kept, "held": held, "first": first, "second": second,
            "metrics": pipe.evaluate(second, held)}  # fmt: skip


def test_another_client_may_be_the_current_one(
    client: Client, data: dict[str, Path], short: dict[str, Any]
) -> None:
    with local_client(1, processes=False) as other, other.as_current():
        run = daskxml.train(short, client=client, **data)
        with Pipeline(client=client) as pipe:
            assert pipe.read(data["train"]).made()
    assert run.history


def test_two_trainings_share_what_leads_to_them_and_a_later_process_keeps_them(
    client: Client, data: dict[str, Path], short: dict[str, Any], tmp_path: Path
) -> None:
    folder, heard = tmp_path / "pipe", Heard()
    with Pipeline(folder, client=client, on_event=heard) as pipe:
        made = build(pipe, data, short)
        assert heard == []  # nothing is done before it is needed
        first, metrics = made["first"].result(), made["metrics"].result()
        second = made["second"].result()
        assert second.metrics["P@1"] == metrics["P@1"]
        assert pipe.predict(made["first"], made["held"], tmp_path / "top.npz").result().exists()
        found = heard.counts()
        once = ("read", "halve", "drop rare labels", "kept", "held out", "shuffle for first")
        assert {name: found[name, "done"] for name in once} == dict.fromkeys(once, 1)
        assert found["shuffle for second", "done"] == 1
        sizes = {stage["name"]: stage for stage in heard if stage["outcome"] == "done"}
        assert sizes["read"]["rows"] == sizes["halve"]["rows"] == 1500
        assert sizes["kept"]["rows"] + sizes["held out"]["rows"] == 1500
        assert sizes["read"]["nbytes"] > 1500
    assert first.out is not None
    stages = json.loads((first.out / "environment.json").read_text())[-1]["stages"]
    assert [stage["name"] for stage in stages] == ["kept", "held out", "shuffle"]
    assert all(stage["seconds"] > 0 for stage in stages)

    again = Heard()
    with Pipeline(folder, client=client, on_event=again) as pipe:
        made = build(pipe, data, short)
        assert made["metrics"].result() == metrics
        assert made["first"].result().history == first.history
        assert again.counts() == {("evaluate second", "kept"): 1, ("first", "kept"): 1}
        changed = pipe.train(short, pipe.read(data["train"]), name="first")
        assert changed.result().out != first.out
        assert again.counts()["read", "done"] == 1


def test_a_stage_that_is_described_again_is_the_same(client: Client, data: dict[str, Path]) -> None:
    with Pipeline(client=client) as pipe:
        rows, same = (pipe.map(halve, pipe.read(data["train"])) for _ in range(2))
        assert rows is same
        other = pipe.map(halve, pipe.read(data["train"]), factor=0.125)
        keys = {future.key for future in rows.partitions}
        assert not {future.key for future in other.partitions} & keys


def test_a_failed_stage_goes_on_where_it_was_and_says_what_failed(
    client: Client, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    blocks = [(rng.random((n, 4)), rng.random((n, 3)) > 0.5) for n in (10, 11, 12)]
    futures = client.scatter(blocks)
    marker = tmp_path / "marker"
    with Pipeline(client=client) as pipe:
        rows = pipe.read(futures)
        late = pipe.map(unless, rows, marker=str(marker))
        with pytest.raises(
            daskxml.InputError, match="stage 'unless', partition 1: ValueError: not"
        ):
            _ = late.partitions
        marker.touch()
        assert len(late.partitions) == 3
        for function, problem in ((wrong, "ZeroDivisionError"), (careless, "is no partition")):
            with pytest.raises(daskxml.InputError, match=f"partition 0: .*{problem}"):
                _ = pipe.map(function, rows).partitions
        assert pipe.reduce(count_rows, sum, rows).result() == 33
        with pytest.raises(daskxml.ConfigError, match=r"share = 2: must be"):
            pipe.split(rows, 2)
        with pytest.raises(daskxml.ConfigError, match="unknown key 'formt'"):
            pipe.read("rows.txt", formt="csv")
        with pytest.raises(daskxml.InputError, match="no such file"):
            _ = pipe.read(tmp_path / "rows.txt").partitions


@pytest.mark.slow
def test_a_worker_killed_in_a_stage_and_between_two(
    client: Client, data: dict[str, Path], short: dict[str, Any]
) -> None:
    with Pipeline(client=client) as pipe:
        rows = pipe.map(slowly, pipe.read(data["train"], block_bytes=20_000))
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        assert len(rows.partitions) > 4
        client.wait_for_workers(2, timeout=60)
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        run = pipe.train(short, rows).result()
        assert len(run.history) == 2


def test_columns_in_another_order_are_refused_or_found_by_name(
    client: Client, tmp_path: Path
) -> None:
    table = pd.DataFrame(np.random.default_rng(0).random((200, 3)), columns=["a", "b", "c"])
    for name, columns in (("train", "abc"), ("test", "cab")):
        rows = table[[*columns]].assign(labels=table.to_numpy().argmax(axis=1))
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "names.txt").write_text("b\na\nc\n")
    paths = (tmp_path / "train.csv", tmp_path / "test.csv")
    plain = {"training.trees": 1, "data.normalize": "none"}
    with Pipeline(client=client) as pipe:
        with pytest.raises(daskxml.InputError, match="other columns than the training rows, or in"):
            pipe.train("tree", *(pipe.read(str(path)) for path in paths)).result()
        own = {"feature_names": str(tmp_path / "names.txt")}
        train, test = (pipe.read(str(path), **own) for path in paths)
        run = pipe.train("tree", train, test, overrides=plain).result()
    assert run.metrics["P@1"] > 0.8
    assert run.model.header.feature_names == ("b", "a", "c")


def test_texts_what_is_learned_of_them_and_names(client: Client) -> None:
    texts = ["red apple", "green apple", "red car", "blue car"] * 8
    names = [["fruit"], ["fruit"], ["car"], ["car"]] * 8
    futures = client.scatter([(texts[:16], names[:16]), (texts[16:], names[16:])], hash=False)
    with Pipeline(client=client) as pipe:
        documents = pipe.read(futures)
        words = pipe.reduce(vocabulary, union, documents)
        counted = pipe.map(word_counts, documents, words)
        rows = pipe.map(one_hot, counted, names=["car", "fruit"])
        tree = {"model": {"kind": "trees"}, "training": {"trees": 1}, "evaluation": {"k": [1]}}
        run = pipe.train(tree, rows, rows).result()
        assert run.metrics["P@1"] == 1.0
        assert words.result() == ["apple", "blue", "car", "green", "red"]


def test_a_pipeline_outside_its_block_says_so() -> None:
    with pytest.raises(daskxml.ConfigError, match="is used in a block"):
        Pipeline().read("rows.txt")
