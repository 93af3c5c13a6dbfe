"""The run files that come with daskxml: every strategy has one, and all are alike but for it."""

import tomllib

import pytest

from daskxml.config import load_run_config, packaged_run_files
from daskxml.strategies import STRATEGIES

FILES = packaged_run_files()
OWN = {"network", "sampled", "slide", "hogbatch-dense", "adaptive-sgd-paper"}  # other settings
COMPARED = [  # those of one comparison, a strategy or a variant of one each
    name for name in FILES if name not in OWN and load_run_config(name).model.kind == "network"
]
WORKERS = {  # replica workers and pools, where a run file says
    "hogwild": (0, 1),
    "hogbatch": (0, 1),
    "minibatch": (1, 0),
    "cpu-gpu-hogbatch": (1, 1),
    "adaptive-hogbatch": (1, 1),
    "adaptive-sgd-pool": (1, 1),
    "hogbatch-dense": (1, 1),
    "slide": (1, 0),
}
ALIKE = ("model", "optimizer", "schedule", "training", "evaluation", "data", "checkpoint")


def test_every_strategy_has_a_run_file():
    assert {name: load_run_config(name).strategy_name for name in STRATEGIES} == {
        name: name for name in STRATEGIES
    }


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_run_file_resolves(name):
    config = load_run_config(name)
    assert config.run.name == name
    assert FILES[name].read_text().startswith("# ")
    strategy = config.make_strategy()
    assert config.rule in strategy.rules
    assert strategy.max_batch_rows() == config.strategy.largest_size(0)
    assert isinstance(config.strategy, STRATEGIES[config.strategy_name].Config)
    assert load_run_config(config.as_dict()) == config
    assert load_run_config(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize("name", COMPARED)
def test_compared_run_files_differ_by_their_strategy_only(name):
    config, adaptive = load_run_config(name), load_run_config("adaptive-sgd")
    for section in ALIKE:
        assert getattr(config, section) == getattr(adaptive, section), section
    assert config.strategy.megabatch_rows == adaptive.strategy.megabatch_rows
    for key in ("lr", "batch_max") if name != "hogwild" else ():  # that has a row at a time
        assert getattr(config.strategy, key) == getattr(adaptive.strategy, key), key


def test_the_variants_are_what_their_names_say():
    for strategy, variants in {
        "adaptive-sgd": ("adaptive-outer", "adaptive-sgd-pool"),
        "elastic": ("elastic-mean", "elastic-outer"),
        "asynchronous": ("ssp",),
        "mirrored": ("adasum-gradients",),
        "hogbatch": ("hogwild", "minibatch"),
    }.items():
        assert {load_run_config(name).strategy_name for name in variants} == {strategy}
    assert load_run_config("ssp").strategy.staleness == 3
    assert load_run_config("asynchronous").strategy.staleness == -1
    assert load_run_config("adasum").rule == "adasum"
    assert load_run_config("adasum-gradients").rule == "adasum"
    assert load_run_config("mirrored").rule == "mean"
    for name, momentum in (("elastic", 0.9), ("adaptive-sgd", 0.9), ("elastic-mean", 0.0)):
        assert load_run_config(name).strategy.momentum == momentum
    for name in ("adaptive-outer", "elastic-outer"):
        config = load_run_config(name)
        assert (config.combine.outer, config.strategy.momentum) == ("nesterov", 0.0)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_run_file_says_which_workers_it_is_for(name):
    cluster = load_run_config(name).cluster
    assert (cluster.workers, cluster.pools) == WORKERS.get(name, (0, 0))


def test_hogwild_is_one_row_a_thread_at_the_rate_of_one_row():
    config = load_run_config("hogwild").strategy
    batch = load_run_config("hogbatch").strategy
    assert config.first_size(3) == 3
    assert config.lr == pytest.approx(batch.lr / batch.batch_max, rel=0.03)


def test_the_dense_run_file_has_the_shapes_of_table_2():
    config = load_run_config("hogbatch-dense")
    assert (config.model.hidden, config.model.activation) == ((512,) * 8, "sigmoid")
    assert config.strategy.bounds_of(0) == (64, 8192)
    assert config.strategy.bounds_of(56) == (56, 56 * 64)
    assert (config.strategy.alpha, config.strategy.beta) == (2.0, 1.0)
    assert config.evaluation.training_loss
