"""What a run was started with is written beside it, once for every start."""

import json
import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest

import daskxml
from daskxml.config import load_run_config
from daskxml.core.errors import ModelError
from daskxml.records.checkpoint import write_checkpoint
from daskxml.records.environment import describe, read_starts, write_starts
from daskxml.records.run_dir import RunDir

CONFIG = load_run_config({"training": {"epochs": 1}})


def test_a_description_names_hardware_and_versions():
    found = describe()
    assert found["daskxml"] == daskxml.__version__
    assert found["python"] == platform.python_version()
    assert found["packages"]["numpy"] == np.__version__
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert 0 < found["memory_gib"] < 1e5
    assert platform.node() not in json.dumps(found).split('"'), "hardware, not a host's name"


def test_the_commit_is_that_of_the_source():
    root = Path(daskxml.__file__).parents[1]
    git = ["git", "-C", str(root), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("the package is not run from its repository")
    assert describe()["commit"].removesuffix("+") == done.stdout.strip()


def test_the_commit_of_an_image_is_that_it_was_built_from(monkeypatch, tmp_path):
    monkeypatch.setattr("daskxml.records.environment.PACKAGE", tmp_path)
    monkeypatch.setenv("DASKXML_COMMIT", "12ab")
    assert describe()["commit"] == "12ab"
    monkeypatch.delenv("DASKXML_COMMIT")
    assert describe()["commit"] is None


def test_every_start_of_a_run_is_recorded(tmp_path):
    out = tmp_path / "run"
    with RunDir.open(out, None) as place:
        place.begin(CONFIG)
    assert len(read_starts(out)) == 1
    model = {"current": np.zeros(3, np.float32), "previous": np.zeros(3, np.float32)}
    write_checkpoint(out, 2, model, '{"history": []}', keep=5)
    with RunDir.open(None, out) as place:
        place.begin(CONFIG)
        place.record({"kind": "stages", "stages": [{"name": "parse"}]})
        place.record({"kind": "equipment", "workers": {"a": {"cores": 2}}})
        place.record({"kind": "equipment", "workers": {"b": {"cores": 4}}})
    assert "stages" not in read_starts(out)[0]
    last = read_starts(out)[1]
    assert last["stages"] == [{"name": "parse"}]
    assert last["workers"] == {"a": {"cores": 2}, "b": {"cores": 4}}
    assert [start["daskxml"] for start in read_starts(out)] == [daskxml.__version__] * 2


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '"x"'])
def test_a_damaged_record_is_none(tmp_path, text):
    (tmp_path / "environment.json").write_text(text)
    assert read_starts(tmp_path) == []


def test_a_record_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(ModelError):
        write_starts(tmp_path / "nowhere", [])
