"""Predictions on a real cluster: the same as in one process, also after errors and kills."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client

import daskxml
import daskxml.api.predict as predictions
from daskxml.cli import main
from daskxml.cluster.connection import kept
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.models.trained import Model
from harness.small_models import random_network

ROWS = SyntheticSpec(rows=300, test_rows=200, features=50, labels=12, seed=5)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """A folder with a model and two files of rows."""
    folder = tmp_path_factory.mktemp("predict")
    names = {"label_names": tuple(f"tag {label}" for label in range(12))}
    random_network(header=names, features=50, labels=12, hidden=(8,)).save(folder / "model")
    write_xml(folder / "a.txt", ROWS, "train")
    write_xml(folder / "b.txt", ROWS, "test")
    return folder, Model.load(folder / "model", threads=1)


def check_as_in_one_process(found: Path, folder: Path, out: Path) -> None:
    """Compare files: a product's last bit may depend on the rows beside it (the BLAS's choice)."""
    files = [str(folder / "a.txt"), str(folder / "b.txt")]
    assert main(["predict", str(folder / "model"), *files, "--top-k", "3", "--out", str(out)]) == 0
    (texts, numbers), expected = split_scores(found), split_scores(out)
    assert texts == expected[0]
    np.testing.assert_allclose(numbers, expected[1], rtol=1e-6)


def split_scores(path: Path) -> tuple[list[str], list[float]]:
    """Divide a file into its scores and what stands between them."""
    parts = re.split(r"(\d\.\d+(?:e-\d+)?)", path.read_text())
    return parts[::2], [float(part) for part in parts[1::2]]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_files_are_ranked_as_in_one_process(
    client: Client, world: tuple[Path, Model], tmp_path: Path, suffix: str
) -> None:
    folder, model = world
    out = tmp_path / f"out{suffix}"
    files = [folder / "a.txt", folder / "b.txt"]
    done = daskxml.predict(model, files, k=3, out=out, client=client, block_bytes=3000)
    assert (done.rows, done.scores) == (500, 1500)
    check_as_in_one_process(out, folder, tmp_path / f"expected{suffix}")
    assert len(list(tmp_path.iterdir())) == 2


def test_from_the_command_line(
    client: Client, world: tuple[Path, Model], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = world
    out, address = tmp_path / "out.jsonl", client.scheduler.address
    arguments = [str(folder / "model"), str(folder / "[ab].txt"), "--top-k", "3"]
    command = ["predict", *arguments, "--out", str(out), "--scheduler", address]
    assert main(command) == 0
    assert f"wrote 500 rows x 12 labels, 1,500 scores, to {out}\n" in capsys.readouterr().out
    check_as_in_one_process(out, folder, tmp_path / "expected.jsonl")
    capsys.readouterr()
    assert main([*command[:-3], "-", *command[-2:]]) == 0
    assert capsys.readouterr().out == out.read_text()


def test_a_row_that_cannot_be_read_leaves_nothing(
    client: Client, world: tuple[Path, Model], tmp_path: Path
) -> None:
    folder, model = world
    good = (folder / "a.txt").read_text()
    rows = tmp_path / "rows.txt"
    rows.write_text(good[: good.rindex(":")] + "x" + good[good.rindex(":") + 1 :])
    with pytest.raises(daskxml.InputError, match=r"rows\.txt"):
        daskxml.predict(model, rows, out=tmp_path / "out.jsonl", client=client, block_bytes=3000)
    assert list(tmp_path.iterdir()) == [rows]


@pytest.mark.slow
def test_few_blocks_are_under_way_at_a_time(
    client: Client, world: tuple[Path, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = world
    monkeypatch.setattr(predictions, "AHEAD", 1)
    held = len(client.futures)
    blocks = predictions._files(client, model, [str(folder / "a.txt")], 3, 500)
    submitted = [len(client.futures) for _ in blocks]
    assert len(submitted) > 20
    assert max(submitted) - held <= 2 + sum(client.nthreads().values())
    assert len(client.futures) == held


@pytest.mark.slow
def test_a_worker_is_killed(client: Client, world: tuple[Path, Model], tmp_path: Path) -> None:
    folder, model = world
    out = tmp_path / "out.jsonl"
    pids = list(client.run(os.getpid).values())
    killed: list[int] = []

    def kill() -> None:
        while not list(tmp_path.glob("*.partial")):
            time.sleep(0.001)
        os.kill(pids[0], signal.SIGKILL)
        killed.append(pids[0])

    killer = threading.Thread(target=kill)
    killer.start()
    files = [folder / "a.txt", folder / "b.txt"]
    done = daskxml.predict(model, files, k=3, out=out, client=client, block_bytes=500)
    killer.join()
    assert killed
    assert done.rows == 500
    check_as_in_one_process(out, folder, tmp_path / "expected.jsonl")


def test_what_workers_are_given_outlives_all_of_them(client: Client) -> None:
    held = kept(client, np.arange(5))
    held.result()
    for pid in client.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    assert client.submit(sum, held, pure=False).result(timeout=30) == 10


def test_a_dask_array_gives_a_lazy_one(client: Client, world: tuple[Path, Model]) -> None:
    _, model = world
    X = sp.random(40, 50, 0.2, "csr", np.float32, rng=np.random.default_rng(0))
    parts = [da.from_array(X[i : i + 10].toarray(), chunks=(10, 50)) for i in range(0, 40, 10)]
    lazy = daskxml.predict(model, da.concatenate(parts), k=3)
    assert (lazy.shape, lazy.chunks[0]) == ((40, 12), (10, 10, 10, 10))
    blocks = client.gather(client.compute(list(lazy.to_delayed()[:, 0])))
    expected = model.predict(X, 3)
    np.testing.assert_allclose(sp.vstack(blocks).toarray(), expected.toarray(), rtol=1e-6)


def test_what_is_refused(client: Client, world: tuple[Path, Model], tmp_path: Path) -> None:
    folder, model = world
    rows = folder / "a.txt"
    for given, message in (
        ({}, "give out"),
        ({"out": tmp_path / "x.pickle"}, r"must end in \.npz"),
        ({"out": tmp_path / "x.npz", "k": 0}, "at least 1"),
    ):
        with pytest.raises(daskxml.ConfigError, match=message):
            daskxml.predict(model, rows, client=client, **given)
    with pytest.raises(daskxml.InputError, match="no directory"):
        daskxml.predict(model, rows, out=tmp_path / "no" / "x.npz", client=client)
    with pytest.raises(daskxml.InputError, match=r"nothing\.txt"):
        daskxml.predict(model, folder / "nothing.txt", out=tmp_path / "x.npz", client=client)
    with pytest.raises(daskxml.ConfigError, match="no cluster"):
        daskxml.predict(model, rows, out=tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []
