"""Suites and their cells: what a file may say, and which runs follow from it."""

from pathlib import Path

import pytest

from daskxml.cli.suite import Cell, find_rows, load_suite, plan
from daskxml.config import RunConfig, load_run_config
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.files import packaged
from daskxml.data.settings import load_card
from daskxml.data.synthetic import SyntheticSpec, write_xml

SMALL = "[data.small]\nrows = 40\ntest_rows = 10\nfeatures = 9\nlabels = 5\n"
MATRIX = '[[matrix]]\nrun = ["adaptive-sgd"]\ndata = ["small"]\n'
ROWS = {"data.train": ["train.txt"], "data.test": ["test.txt"]}


def cells_of(folder: Path, text: str, data: Path | None = None) -> list[Cell]:
    path = folder / "mine.toml"
    path.write_text(text)
    suite = load_suite(path)
    return plan(suite, find_rows(suite, data, folder / "generated"))


def config_of(folder: Path, cell: Cell) -> RunConfig:
    path = folder / "written.toml"
    path.write_text(cell.run_file)
    return load_run_config(path)


@pytest.mark.parametrize("name", packaged("suites"))
def test_every_run_of_a_packaged_suite_resolves(name):
    suite = load_suite(name)
    names = {data for matrix in suite.matrices for data in matrix.data}
    cells = plan(suite, dict.fromkeys(names, ROWS))
    assert suite.limits.title
    assert not any(cell.missing for cell in cells)
    assert all(load_card(data).name == data for data in names - set(suite.synthetic))
    if name.startswith("paper"):
        assert {cell.names[-1] for cell in cells} == {"simulate"}
    if name == "smoke":
        assert names == set(suite.synthetic)


def test_a_matrix_is_a_cell_for_every_combination(tmp_path):
    axes = 'workers = [1, 2]\nseeds = [3, 4]\nexecutors = ["cluster", "simulate"]\n'
    cells = cells_of(tmp_path, SMALL + MATRIX + axes)
    assert len(cells) == len({cell.title for cell in cells}) == 8
    assert [cell.seed for cell in cells] == [3] * 4 + [4] * 4  # seeds take turns
    real, virtual = cells[2], cells[3]
    assert real.names == ("adaptive-sgd", "small", "2", "cluster")
    config = config_of(tmp_path, real)
    assert (config.cluster.workers, config.run.seed) == (2, 3)
    assert Path(config.data.train[0]).read_text().startswith("40 9 5\n")
    assert virtual.command[-2:] == ("--speeds", "1.0,0.92")
    assert config_of(tmp_path, virtual).cluster.workers == 0


def test_settings_of_one_run_win_over_those_of_all(tmp_path):
    text = MATRIX.replace('"adaptive-sgd"', '"adaptive-sgd strategy.batch_max=8", "adaptive-sgd"')
    text += 'settings = ["strategy.batch_max=16", "training.epochs=1"]\n'
    own, other = (config_of(tmp_path, cell) for cell in cells_of(tmp_path, SMALL + text))
    assert (own.strategy.batch_max, other.strategy.batch_max) == (8, 16)
    assert own.training.epochs == other.training.epochs == 1.0


def test_a_run_file_beside_the_suite_is_found(tmp_path):
    (tmp_path / "beside.toml").write_text("[training]\nepochs = 3\n")
    [cell] = cells_of(tmp_path, SMALL + MATRIX.replace("adaptive-sgd", "beside"))
    assert "epochs = 3.0" in cell.run_file


def test_a_real_set_is_found_by_its_card_or_said_to_be_missing(tmp_path):
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
    write_xml(tmp_path / "rows.txt", SyntheticSpec(rows=20, features=6, labels=3), "train")
    [cell] = cells_of(tmp_path, text, tmp_path)
    assert not cell.missing
    path.write_text(card + f'sha256 = "{"0" * 64}"\n')
    with pytest.raises(InputError, match="is not the train file that the card"):
        cells_of(tmp_path, text, tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "nothing to measure: give tables headed [[matrix]]"),
        ("[suite]\ntitel = 'x'\n" + MATRIX, "[suite]: unknown key 'titel', did you mean 'title'?"),
        ("[suites]\n", "[suites] is no part of a suite, did you mean 'suite'?"),
        ("x = 1 2\n", "mine.toml:1: not valid TOML"),
        ("[matrix]\nrun = []\n", "give tables headed [[matrix]]"),
        ("matrix = [3]\n", "[[matrix]] 1 must be a table"),
        ("data = 3\n" + MATRIX, "data must be tables, each headed [data.NAME]"),
        (SMALL + MATRIX + "seeds = [1, 1]\n", "[[matrix]] 1: seeds = [1, 1]: must name at least"),
        (SMALL + MATRIX + "seeds = [-1]\n", "seeds = [-1]: must be at least 0"),
        (SMALL + MATRIX + 'executors = ["clutser"]\n', "must be a list, each item"),
        ("[suite]\nminutes = 0\n" + MATRIX, "[suite]: minutes = 0.0: must be above 0"),
        ('[suite]\nmemory = "much"\n' + MATRIX, "'much' is not a size"),
        (SMALL + MATRIX + 'settings = ["strategy=3"]\n', "must be section.key=value"),
        (SMALL + MATRIX + 'settings = ["strategy.lrr=3"]\n', "key 'lrr', did you mean 'lr'?"),
        (SMALL + MATRIX + 'simulate = "--cost 1"\nexecutors = ["simulate"]\n', "three numbers"),
        (SMALL + MATRIX + 'simulate = "--csot 1"\nexecutors = ["simulate"]\n', "unrecognized"),
        (SMALL + MATRIX.replace("adaptive-sgd", "adaptve-sgd"), "did you mean 'adaptive-sgd'?"),
        (MATRIX.replace("small", "delicous"), "did you mean 'delicious'?"),
        (SMALL.replace("labels = 5\n", "") + MATRIX, "[data.small]: missing 1 required"),
        (SMALL + MATRIX.replace('data = ["small"]', ""), "missing 1 required keyword-only"),
        (SMALL + MATRIX + MATRIX, "is there twice"),
    ],
)
def test_a_wrong_suite_is_one_line_with_its_place(tmp_path, text, problem):
    with pytest.raises(ConfigError) as caught:
        cells_of(tmp_path, text)
    assert problem in caught.value.message
    assert "mine.toml" in caught.value.message or "dataset card" in caught.value.message
