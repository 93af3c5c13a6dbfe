"""A run's directory is one run's alone."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from daskxml.config import load_run_config
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.files import lock_folder
from daskxml.records.checkpoint import write_checkpoint
from daskxml.records.run_dir import RunDir, begun, extend_history, read_history

CONFIG = load_run_config({"training": {"epochs": 1}})


def fail_after(begun: None) -> None:
    raise ZeroDivisionError


def test_no_directory_keeps_nothing() -> None:
    place = RunDir.open(None, None)
    with place:
        place.begin(CONFIG)
        place.append({"megabatch": 1})
    assert place.path is None
    assert place.history() == []


def test_a_directory_that_is_removed_under_its_run_is_no_full_disk(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", None) as place:
        place.begin(CONFIG)
        place.append({"megabatch": 1})
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(ModelError, match=r"history.jsonl: .*; its directory has been removed"):
            place.append({"megabatch": 2})


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", None) as place:
        place.begin(CONFIG)
        place.append({"megabatch": 1})
    write_checkpoint(tmp_path / "run", 1, {"current": np.zeros(3, np.float32)}, "{}", keep=1)
    with pytest.raises(ModelError, match="--resume"):
        RunDir.open(tmp_path / "run", None)
    assert read_history(tmp_path / "run" / "history.jsonl") == [{"megabatch": 1}]


def test_resuming_is_not_suggested_without_a_checkpoint(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", None) as place:
        place.begin(CONFIG)
        place.append({"megabatch": 1})
    with pytest.raises(ModelError, match=r"holds a run already; choose another --out$"):
        RunDir.open(tmp_path / "run", None)
    with pytest.raises(ModelError, match=r"no checkpoint to resume from; .* another --out$"):
        RunDir.open(None, tmp_path / "run")


def test_two_at_once(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", None):
        second = RunDir.open(tmp_path / "run", None)
        with pytest.raises(ModelError, match="under way"), second:
            pass


def test_a_run_that_failed_at_the_start_leaves_the_place_free(tmp_path: Path) -> None:
    out = tmp_path / "run"
    place = RunDir.open(out, None)
    with pytest.raises(ZeroDivisionError), place:
        fail_after(place.begin(CONFIG))
    assert not out.exists()
    RunDir.open(out, None)


def test_resume_takes_the_newest_checkpoint_of_a_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ModelError, match="no run to resume"):
        RunDir.open(None, out)
    with RunDir.open(out, None) as place:
        place.begin(CONFIG)
    with pytest.raises(ModelError, match="no checkpoint"):
        RunDir.open(None, out)
    model = {"current": np.zeros(3, np.float32), "previous": np.zeros(3, np.float32)}
    for megabatch in (2, 4):
        write_checkpoint(out, megabatch, model, '{"history": []}', keep=5)
    resumed = RunDir.open(out, out)
    assert resumed.checkpoint is not None
    assert Path(resumed.checkpoint).stem == "000004"
    with pytest.raises(ConfigError, match="--resume"):
        RunDir.open(tmp_path / "other", out)


def test_a_run_begins_anew_only_where_nobody_writes_and_no_checkpoint_is(tmp_path: Path) -> None:
    assert begun(None) == {}
    (tmp_path / "run.toml").touch()
    with (
        contextlib.closing(lock_folder(tmp_path, "busy")),
        pytest.raises(ModelError, match="a run is under way"),
    ):
        begun(tmp_path)
    assert (tmp_path / "run.toml").exists()
    assert begun(tmp_path) == {"out": tmp_path}
    assert not tmp_path.exists()
    with RunDir.open(tmp_path, None) as place:
        place.begin(CONFIG)
    write_checkpoint(tmp_path, 1, {"current": np.zeros(3, np.float32)}, "{}", keep=1)
    assert begun(tmp_path) == {"resume": tmp_path}


# ---------------------------------------------------------------- the history


def test_written_appended_and_read(tmp_path):
    path = tmp_path / "history.jsonl"
    rows = [{"megabatch": i, "loss": 0.1 * i, "name": "ä\u2028b\n"} for i in range(3)]
    place = RunDir(tmp_path, None)
    place.rewrite(rows[:1])
    for row in rows[1:]:
        extend_history(path, None, [row])
    assert read_history(path) == rows
    place.rewrite(rows[:2])
    assert read_history(path) == rows[:2]
    assert [p.name for p in tmp_path.iterdir()] == ["history.jsonl"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'{"a": 1}\n{"a"', ":2: not a JSON object"),
        (b'{"a": 1}\n3\n', ":2: not a JSON object"),
        (b'{"a": 1}\n\n', ":2: not a JSON object"),
        (b"\xff\xfe\x00", ":1: not a JSON object"),
    ],
)
def test_a_damaged_history_is_refused(tmp_path, content, place):
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_history(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert "\n" not in str(caught.value)


def test_a_history_that_is_missing_or_has_no_place(tmp_path):
    path = tmp_path / "no" / "history.jsonl"
    with pytest.raises(ModelError, match="no history of a run here"):
        read_history(path)
    with pytest.raises(ModelError, match="cannot be written"):
        extend_history(path, None, [{}])
    with pytest.raises(ModelError, match="cannot be written"):
        RunDir(path.parent, None).rewrite([])
