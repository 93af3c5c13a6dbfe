"""Suites and their cells: what a file may say, and what decides a cell's result."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from daskxml.cli.bench import load_suite, packaged_suites
from daskxml.cli.bench.cells import DataSet, find_sets, plan_cells, scripts_folder
from daskxml.config import load_run_config
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.cards import load_card
from daskxml.data.synthetic import SyntheticSpec, write_xml

SMALL = "[data.small]\nrows = 40\ntest_rows = 10\nfeatures = 9\nlabels = 5\n"
MATRIX = '[[matrix]]\nrun = ["adaptive-sgd"]\ndata = ["small"]\n'
SCRIPT = '[[script]]\nname = "s"\nfile = "s.py"\nresult = "s"\nrows = ["what"]\nsmaller = ["ms"]\n'


def suite_of(folder: Path, text: str):
    path = folder / "mine.toml"
    path.write_text(text)
    return load_suite(path)


def cells_of(folder: Path, text: str, data: Path | None = None):
    suite = suite_of(folder, text)
    return plan_cells(suite, find_sets(suite, data, folder / "generated"))


@pytest.mark.parametrize("name", packaged_suites())
def test_every_run_of_a_suite_that_ships_resolves(name, tmp_path):
    suite = load_suite(name)
    sets = find_sets(suite, None, tmp_path) if name == "smoke" else dict.fromkeys(suite.data, ROWS)
    cells = plan_cells(suite, sets)
    assert suite.title
    assert not any(cell.missing for cell in cells)
    for cell in cells:
        assert (cell.script is None) == bool(cell.run_file)
        assert all(load_card(data).name == data for data in set(suite.data) - set(suite.synthetic))


ROWS = DataSet(train="train.txt", test="test.txt", contents=("0",))


def test_smoke_needs_no_files_and_the_papers_suites_are_simulated():
    assert not set(load_suite("smoke").data) - set(load_suite("smoke").synthetic)
    for name in ("paper-adaptive", "paper-hogbatch", "paper-adasum"):
        executors = {e for matrix in load_suite(name).matrices for e in matrix.executors}
        assert executors == {"simulate"}


@pytest.mark.parametrize("script", load_suite("speed").scripts, ids=lambda script: script.name)
def test_the_columns_of_the_speed_suite_are_those_that_the_scripts_write(script):
    results = scripts_folder() / "results" / f"{script.result}.json"
    for row in json.loads(results.read_text())["rows"]:
        assert {*script.rows, *script.columns} <= row.keys()


def test_a_matrix_is_a_cell_for_every_combination(tmp_path):
    axes = 'workers = [1, 2]\nseeds = [3, 4]\nexecutors = ["cluster", "simulate"]\n'
    cells = cells_of(tmp_path, SMALL + MATRIX + axes)
    assert len(cells) == len({(cell.names, cell.repeat) for cell in cells}) == 8
    assert [cell.repeat for cell in cells] == [3] * 4 + [4] * 4  # seeds take turns
    real, virtual = cells[2], cells[3]
    assert real.names == ("adaptive-sgd", "small", "2", "cluster")
    config = load_run_config(write(tmp_path, real.run_file))
    assert (config.cluster.workers, config.run.seed) == (2, 3)
    assert Path(config.data.train[0]).read_text().startswith("40 9 5\n")
    assert virtual.command[-2:] == ("--speeds", "1.0,0.92")
    assert load_run_config(write(tmp_path, virtual.run_file)).cluster.workers == 0


def write(folder: Path, text: str) -> Path:
    path = folder / "written.toml"
    path.write_text(text)
    return path


def test_settings_of_one_run_win_over_those_of_all(tmp_path):
    text = (
        '[runs.other]\nfile = "adaptive-sgd"\nset.strategy.lr = 0.3\nset.strategy.batch_max = 16\n'
        + SMALL
        + '[[matrix]]\nrun = ["other", "adaptive-sgd"]\ndata = ["small"]\nset.strategy.lr = 0.5\n'
        + "set.training.epochs = 1\neach.other.strategy.batch_max = 8\n"
    )
    configs = {
        cell.names[0]: load_run_config(write(tmp_path, cell.run_file))
        for cell in cells_of(tmp_path, text)
    }
    assert (configs["other"].strategy.lr, configs["other"].strategy.batch_max) == (0.3, 8)
    assert configs["adaptive-sgd"].strategy.lr == 0.5
    assert {config.training.epochs for config in configs.values()} == {1.0}


def test_a_run_file_beside_the_suite_is_found(tmp_path):
    (tmp_path / "beside.toml").write_text("[training]\nepochs = 3\n")
    [cell] = cells_of(tmp_path, SMALL + MATRIX.replace("adaptive-sgd", "beside"))
    assert "epochs = 3.0" in cell.run_file


def test_the_key_follows_from_all_that_decides_a_result(tmp_path):
    def key(text, environment="here"):
        return cells_of(tmp_path, text)[0].key({"cpu": environment})

    usual = key(SMALL + MATRIX)
    assert key(SMALL + MATRIX) == usual
    assert key("[suite]\nminutes = 3\n" + SMALL + MATRIX) == usual  # a budget decides nothing
    others = [
        key(SMALL + MATRIX, "elsewhere"),
        key(SMALL + MATRIX + "seeds = [1]\n"),
        key(SMALL + MATRIX + "set.strategy.lr = 0.25\n"),
        key(SMALL.replace("rows = 40", "rows = 41") + MATRIX),
        key(SMALL + MATRIX + 'executors = ["simulate"]\n'),
        key(SMALL + MATRIX + 'executors = ["simulate"]\nsimulate.jitter = 0.0\n'),
    ]
    assert len({usual, *others}) == 7
    keys = set()
    for text in ("print(1)", "print(2)"):
        (tmp_path / "s.py").write_text(text)
        keys.add(key(SCRIPT))
    assert len(keys) == 2


def test_where_rows_lie_is_no_part_of_the_key(tmp_path):
    suite = suite_of(tmp_path, SMALL + MATRIX)
    first, second = (
        plan_cells(suite, {"small": dataclasses.replace(ROWS, train=train)})[0]
        for train in ("a.txt", "b.txt")
    )
    assert first.run_file != second.run_file
    assert first.key({}) == second.key({})


def test_a_real_set_is_found_by_its_card_or_said_to_be_missing(tmp_path):
    text = MATRIX.replace("small", "mine-card")
    spec = SyntheticSpec(rows=20, features=6, labels=3)
    card = (
        'name = "mine-card"\ntitle = "t"\nsource = "s"\nfeatures = 6\nlabels = 3\n'
        'features_per_row = 3.0\nlabels_per_row = 1.0\n[train]\nfile = "rows.txt"\nrows = 20\n'
    )
    path = tmp_path / "mine-card"
    path.write_text(card)
    text = MATRIX.replace("small", str(path))
    [cell] = cells_of(tmp_path, text)
    assert cell.missing == "give --data FOLDER, with rows.txt"
    [cell] = cells_of(tmp_path, text, tmp_path)
    assert cell.missing == f"no file {tmp_path / 'rows.txt'}"
    write_xml(tmp_path / "rows.txt", spec, "train")
    [cell] = cells_of(tmp_path, text, tmp_path)
    assert not cell.missing
    path.write_text(card + f'sha256 = "{"0" * 64}"\n')
    with pytest.raises(InputError, match="is not the train file that the card"):
        cells_of(tmp_path, text, tmp_path)


def test_a_script_that_is_not_installed_is_said_to_be_missing(tmp_path):
    cells = cells_of(tmp_path, SCRIPT)
    assert len(cells) == 3
    assert {cell.missing for cell in cells} == {"no file s.py beside the suite, nor in benchmarks/"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "nothing to measure: give a [[matrix]] or a [[script]]"),
        ("[suite]\ntitel = 'x'\n" + SCRIPT, "[suite]: unknown key 'titel', did you mean 'title'?"),
        ("[suites]\n", "[suites] is no part of a suite, did you mean 'suite'?"),
        ("x = 1 2\n", "mine.toml:1: not valid TOML"),
        ("[matrix]\nrun = []\n", "matrix must be tables, each headed [[matrix]]"),
        ("runs = 3\n" + SCRIPT, "runs must be a table"),
        ("[runs]\na = 3\n" + SCRIPT, "[runs.a] must be a table"),
        (SMALL + MATRIX + "seeds = [1, 1]\n", "[[matrix]] 1: seeds = [1, 1]: must name at least"),
        (SMALL + MATRIX + "seeds = [-1]\n", "seeds = (-1,): must be at least 0"),
        (SMALL + MATRIX + 'executors = ["clutser"]\n', "did you mean 'cluster'?"),
        (SMALL + MATRIX + "minutes = 0\n", "minutes = 0.0: must be above 0"),
        (SMALL + MATRIX + 'memory = "much"\n', "'much' is not a size"),
        (SMALL + MATRIX + "set.strategy = 3\n", "settings must be section.key = value"),
        (SMALL + MATRIX + "each.elastic.strategy.lr = 3\n", "each.elastic: no such run"),
        (SMALL + MATRIX + "simulate.cost = [1.0]\n", "must be three numbers: fixed, row, non-zero"),
        (SMALL + MATRIX + "simulate.names = ['a']\n", "must be as many as speeds"),
        (SMALL + MATRIX + "simulate.speed = 1\n", "did you mean 'speeds'?"),
        (SMALL + MATRIX + "set.strategy.lrr = 3.0\n", "unknown key 'lrr', did you mean 'lr'?"),
        (SMALL + MATRIX.replace("adaptive-sgd", "adaptve-sgd"), "did you mean 'adaptive-sgd'?"),
        (MATRIX.replace("small", "delicous"), "did you mean 'delicious'?"),
        (SMALL.replace("labels = 5\n", "") + MATRIX, "[data.small]: missing 1 required"),
        (SMALL + MATRIX + MATRIX, "is there twice"),
        (SCRIPT.replace("smaller", "told") + "told=[]", "not valid TOML"),
        (
            SCRIPT.replace('smaller = ["ms"]\n', ""),
            "[[script]] 1: rows, or smaller and larger, are empty",
        ),
        (
            SCRIPT.replace('result = "s"\n', ""),
            "missing 1 required keyword-only argument: 'result'",
        ),
    ],
)
def test_a_wrong_suite_is_one_line_with_its_place(tmp_path, text, problem):
    with pytest.raises(ConfigError) as caught:
        cells_of(tmp_path, text)
    assert problem in caught.value.message
    assert "mine.toml" in caught.value.message or "dataset card" in caught.value.message


def test_an_unknown_suite_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="smoek: no such suite, did you mean 'smoke'"):
        load_suite("smoek")
