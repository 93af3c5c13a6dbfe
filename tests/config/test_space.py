"""Space files: what they accept, what they refuse, and that they load as themselves."""

from __future__ import annotations

import pytest

from daskxml.config.space import Choices, Interval, load_space, run_file_tables
from daskxml.core.errors import ConfigError

RUN_FILE = {"training": {"epochs": 2}}
TEXT = """
[search]
trials = 7

[strategy]
lr = { low = 1, high = 2.5, step = 0.5 }
batch_max = { low = 8, high = 64, step = 8 }

[model]
hidden = { choices = [[8], [16, 8]] }
"""


def test_ranges_and_choices_have_the_types_of_the_run_file(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(TEXT)
    space = load_space(path, RUN_FILE, {"parallel": 3})
    assert (space.search.trials, space.search.parallel) == (7, 3)
    assert space.dimensions == {
        "strategy.lr": Interval(low=1.0, high=2.5, step=0.5),
        "strategy.batch_max": Interval(low=8, high=64, step=8),
        "model.hidden": Choices(values=([8], [16, 8])),
    }
    assert not space.dimensions["strategy.lr"].is_integer
    assert space.dimensions["strategy.batch_max"].is_integer
    assert load_space(space.as_dict(), RUN_FILE) == space


def test_a_range_may_be_a_table_of_its_own(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text("[strategy.megabatch_batches]\nlow = 1\nhigh = 100\nlog = true\n")
    [interval] = load_space(path, RUN_FILE).dimensions.values()
    assert interval == Interval(low=1, high=100, log=True)


def test_another_strategy_brings_its_own_settings():
    space = load_space({"strategy": {"name": {"choices": ["elastic", "adaptive-sgd"]}}}, RUN_FILE)
    assert space.dimensions["strategy.name"].names == {
        '"elastic"': "elastic", '"adaptive-sgd"': "adaptive-sgd",
    }  # fmt: skip
    tables = run_file_tables(RUN_FILE, ["strategy.lr=0.5"])
    assert tables == {"training": {"epochs": 2}, "strategy": {"lr": 0.5}}


BAD = {
    "[strategy]\nlr = 3": "space.toml:2: [strategy] lr = 3: must be a range or choices, like {",
    "[strategy]\nlr = {low = 1.0, hi = 2}": "[strategy] lr: unknown key 'hi', did you mean 'high'?",
    "[strategy]\nlr = {low = 1.0}": "lr: no high: must be a range or choices",
    "[strategy]\nlr = {low = 'a', high = 2}": "lr: low = 'a' is no number",
    "[strategy]\nlr = {low = true, high = 2}": "lr: low = True is no number",
    "[strategy]\nlr = {low = 2, high = 1}": "lr: low = 2.0 is not below high = 1.0",
    "[strategy]\nlr = {low = -1, high = 1}": "[strategy] lr: lr = -1.0: must be above 0",
    "[strategy]\nlr = {low = nan, high = 1}": "lr: lr = nan: must be a finite number",
    "[strategy]\nlr = {low = 1, high = 2, log = 3}": "log = 3: must be true or false",
    "[strategy]\nlr = {low = 1, high = 2, log = true, step = 0.1}": "leave one out",
    "[strategy]\nlr = {low = 1, high = 2, step = 3}": "step = 3: must be a number from 0 to 1.0",
    "[strategy]\nbatch_max = {low = 1, high = 2.5}": "batch_max = 2.5: must be an integer",
    "[strategy]\nbatch_max = {low = 1, high = 9, step = 0.5}": "must be an integer from 0 to 8",
    "[combine]\nhealth = {low = 1, high = 9}": "unknown key 'health'",
    "[optimizer]\nmomentum = {low = 0, high = 1, log = true}": "momentum",
    "[model]\nhidden = {choices = [[1], 'a']}": "hidden = 'a': must be a list",
    "[model]\nhidden = {choices = []}": "choices = []: must be a list of values",
    "[model]\nhidden = {choices = [[1], [1]]}": "has a value twice",
    "[model]\nhidden = {choices = [[1]], low = 1}": "unknown key 'low'",
    "[strategy]\nname = {choices = ['elastik']}": "did you mean 'elastic'?",
    "[data]\nvalidation = {low = 0.1, high = 0.2}": "[data] is the same in all trials",
    "[run]\nseed = {choices = [1, 2]}": "[run] is the same in all trials",
    "[modell]\nhidden = {choices = [[1]]}": "[modell] is not a section, did you mean 'model'?",
    "[search]\ntrial = 3": "space.toml:2: [search] unknown key 'trial', did you mean 'trials'?",
    "[search]\ntrials = 0": "space.toml:2: [search] trials = 0: must be from 1",
    "[search]\nsampler = 'grid'": "sampler = 'grid': must be one of 'tpe', 'random'",
    "[search]\ntrials = 3": "nothing to search: give [strategy] lr, like {",
    "x = 3": "'x' stands outside a section",
    "[strategy\n": "not valid TOML",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_space_is_refused_in_one_line_with_its_place(text, tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_space(path, RUN_FILE)
    assert BAD[text] in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_no_space_file(tmp_path):
    with pytest.raises(ConfigError, match="no such space file"):
        load_space(tmp_path / "quickstart", RUN_FILE)
