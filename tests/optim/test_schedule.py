"""Learning rate schedules by hand."""

import pytest

from daskxml.core.errors import ConfigError
from daskxml.optim import ScheduleConfig

CASES = [
    ({}, 7.0, 1.0),
    ({"name": "linear"}, 0.0, 1.0),
    ({"name": "linear"}, 2.5, 0.75),
    ({"name": "linear", "final": 0.2}, 5.0, 0.6),
    ({"name": "linear", "final": 0.2}, 12.0, 0.2),
    ({"name": "linear", "warmup_epochs": 2.0}, 1.0, 0.5),
    ({"name": "linear", "warmup_epochs": 2.0}, 2.0, 1.0),
    ({"name": "linear", "warmup_epochs": 2.0}, 6.0, 0.5),
    ({"name": "cosine"}, 5.0, 0.5),
    ({"name": "cosine"}, 2.5, 0.853553),
    ({"name": "cosine", "final": 0.1}, 10.0, 0.1),
    ({"name": "inverse", "decay": 0.5}, 2.0, 0.5),
    ({"name": "inverse", "decay": 0.5, "warmup_epochs": 4.0}, 2.0, 0.25),
    ({"warmup_epochs": 4.0}, 3.0, 0.75),
    ({"warmup_epochs": 4.0}, 4.0, 1.0),
    ({"name": "linear", "warmup_epochs": 20.0}, 10.0, 0.5),
]


@pytest.mark.parametrize(("options", "epoch", "expected"), CASES)
def test_factors(options, epoch, expected):
    assert ScheduleConfig(**options).factor(epoch, 10.0) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "inverse"])
def test_warm_up_rises_from_almost_nothing(name):
    schedule = ScheduleConfig(name=name, warmup_epochs=3.0)
    factors = [schedule.factor(epoch / 10, 10.0) for epoch in range(31)]
    assert factors == sorted(factors)
    assert 0.0 < factors[0] < 0.02
    assert factors[-1] == 1.0


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_an_end_must_be_known(name):
    assert ScheduleConfig(name=name).needs_epochs
    with pytest.raises(ConfigError, match=r"give training\.epochs"):
        ScheduleConfig(name=name).factor(1.0, 0.0)


@pytest.mark.parametrize("name", ["constant", "inverse"])
def test_others_need_no_end(name):
    assert not ScheduleConfig(name=name).needs_epochs
    assert ScheduleConfig(name=name).factor(1.0, 0.0) == 1.0


def test_settings_out_of_range_are_refused():
    for options in ({"name": "step"}, {"final": 1.5}, {"decay": -1.0}, {"warmup_epochs": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            ScheduleConfig(**options)
