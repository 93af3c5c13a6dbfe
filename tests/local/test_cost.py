"""What a batch costs."""

import numpy as np
import pytest

from daskxml.core.errors import ConfigError
from daskxml.local.cost import CostModel, Network, jitter_factor, v100_cost, whole_ticks
from daskxml.models.network.spec import ModelSpec


def test_jitter_has_mean_one_and_its_own_value_for_every_batch():
    factors = np.array([jitter_factor(0.2, 3, "0", 5, number) for number in range(4000)])
    assert abs(factors.mean() - 1.0) < 0.01
    assert abs(np.log(factors).std() - 0.2) < 0.01
    others = [jitter_factor(0.2, 3, "1", 5, 0), jitter_factor(0.2, 3, "0", 6, 0)]
    assert len({factors[0], *others, jitter_factor(0.2, 4, "0", 5, 0)}) == 4


def test_times_in_ticks_add_exactly():
    rng = np.random.default_rng(0)
    times = [whole_ticks(t) for t in rng.uniform(0, 1e-3, 1000)]
    far = whole_ticks(1e6)
    assert sum(times, far) - far == sum(times) == sum(reversed(times))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="costs no time"):
        CostModel()
    with pytest.raises(ConfigError, match="fixed_s = -1"):
        CostModel(fixed_s=-1)
    with pytest.raises(ConfigError, match="bandwidth_bytes_s = 0"):
        Network(bandwidth_bytes_s=0)


def test_a_larger_model_costs_more_a_row():
    small = v100_cost(ModelSpec(features=10, labels=10, hidden=(16,)))
    large = v100_cost(ModelSpec(features=10, labels=1000, hidden=(16,)))
    assert large.per_row_s > small.per_row_s
    assert large.fixed_s == small.fixed_s
