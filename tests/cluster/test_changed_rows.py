"""Rows that are others than those with which a run began: it ends, or is not resumed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import daskxml
from daskxml.core.errors import InputError, ModelError
from harness.deaths import die_in

Data = dict[str, Path]
Values = dict[str, Any]
Change = Callable[[list[str]], list[str]]


def exchanged(lines: list[str]) -> list[str]:
    """As many rows, each with the labels of another."""
    labels, features = zip(*(line.split(" ", 1) for line in lines), strict=True)
    return [" ".join(pair) for pair in zip(labels[1:] + labels[:1], features, strict=True)]


def shorter(lines: list[str]) -> list[str]:
    """A row less in the last block, and one that is as long."""
    return [*lines[:-2], lines[-2] + " " * (1 + len(lines[-1]))]


def rewrite(path: Path, change: Change) -> None:
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *change(lines)]) + "\n")


@pytest.mark.parametrize("change", [exchanged, shorter])
@pytest.mark.parametrize("residency", ["replicate", pytest.param("shard", marks=pytest.mark.slow)])
def test_rows_that_are_lost_and_have_changed_end_the_run(
    single: Client, data: Data, values: Values, tmp_path: Path, change: Change, residency: str
) -> None:
    train = Path(shutil.copy(data["train"], tmp_path / "rows.txt"))
    values["data"] = {"residency": residency}

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "started":
            rewrite(train, change)

    single.run(die_in("commit", 4))
    with pytest.raises(InputError, match="has changed since the run began; start it again"):
        daskxml.train(values, client=single, train=train, out=tmp_path / "run", on_event=hear)


@pytest.mark.parametrize("kind", ["adaptive-sgd", "tree"])
@pytest.mark.parametrize("is_here", [True, False])
def test_a_run_is_not_resumed_with_other_rows(
    single: Client, data: Data, values: Values, tmp_path: Path, kind: str, is_here: bool
) -> None:
    """Be it in this process or on a cluster; nothing of its directory changes."""
    train, out = Path(shutil.copy(data["train"], tmp_path / "rows.txt")), tmp_path / "run"
    place: dict[str, Any] = {"workers": 0} if is_here else {"client": single}
    goal = "training.trees" if kind == "tree" else "training.megabatches"

    def run(parts: int, config: Any, **where: Any) -> daskxml.Run:
        return daskxml.train(config, train=train, overrides={goal: parts}, **where, **place)

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}

    run(2, "tree" if kind == "tree" else values, out=out)
    before = files()
    rewrite(train, exchanged)
    with pytest.raises(ModelError, match="are not those that the run began with"):
        run(3, out / "run.toml", resume=out)
    assert files() == before
    shutil.copy(data["train"], train)
    assert len(run(3, out / "run.toml", resume=out).history) == 3
