"""The run files that come with daskxml: every strategy has one, and all are alike but for it."""

from __future__ import annotations

import pytest

from daskxml.config import load_run_config, packaged_run_files
from daskxml.strategies import STRATEGIES

FILES = packaged_run_files()
STRATEGY_OF = {  # the run files of one comparison
    "adaptive-sgd": "adaptive-sgd",
    "adaptive-outer": "adaptive-sgd",
    "elastic": "elastic",
    "elastic-outer": "elastic",
    "static": "static",
    "mirrored": "mirrored",
    "central": "central",
    "asynchronous": "asynchronous",
    "ssp": "asynchronous",
    "crossbow": "crossbow",
    "adasum": "adasum",
    "adasum-gradients": "mirrored",
}
ALIKE = ("model", "optimizer", "schedule", "training", "evaluation", "data", "checkpoint")


def test_every_strategy_has_a_run_file():
    assert set(STRATEGY_OF.values()) == STRATEGIES.keys()
    assert STRATEGY_OF.keys() <= FILES.keys()


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_run_file_resolves(name):
    config = load_run_config(name)
    assert config.run.name == name
    assert FILES[name].read_text().startswith("# ")
    strategy = config.make_strategy()
    assert config.rule in strategy.rules
    assert strategy.max_batch_rows() == config.strategy.batch_max
    assert isinstance(config.strategy, STRATEGIES[config.strategy_name].Config)
    assert load_run_config(config.as_dict()) == config


@pytest.mark.parametrize("name", STRATEGY_OF)
def test_compared_run_files_differ_by_their_strategy_only(name):
    config, adaptive = load_run_config(name), load_run_config("adaptive-sgd")
    assert config.strategy_name == STRATEGY_OF[name]
    for section in ALIKE:
        assert getattr(config, section) == getattr(adaptive, section), section
    for key in ("lr", "batch_max", "megabatch_batches"):
        assert getattr(config.strategy, key) == getattr(adaptive.strategy, key), key


def test_the_variants_are_what_their_names_say():
    assert load_run_config("ssp").strategy.staleness == 3
    assert load_run_config("asynchronous").strategy.staleness == -1
    assert load_run_config("adasum").rule == "adasum"
    assert load_run_config("adasum-gradients").rule == "adasum"
    assert load_run_config("mirrored").rule == "mean"
    for name in ("adaptive-outer", "elastic-outer"):
        config = load_run_config(name)
        assert (config.combine.outer, config.strategy.momentum) == ("nesterov", 0.0)
