"""Tables over labels: when they are built, what they find, and that they can be resumed."""

import threading

import numpy as np
import pytest

from daskxml.kernels import get_kernels
from daskxml.models.network.sampling import SamplingConfig
from daskxml.models.network.sampling.hash_tables import LabelTables

LABELS, UNITS = 3000, 16
WEIGHT = np.random.default_rng(0).standard_normal((LABELS, UNITS), dtype=np.float32)
BIAS = np.zeros(LABELS, np.float32)


def make_tables(**options):
    return LabelTables(SamplingConfig(**{"method": "simhash", **options}), LABELS, UNITS, seed=1)


def votes_of(tables, hidden, threads=1):
    kernels = get_kernels("cpu", threads)
    votes = np.empty((threads, LABELS), np.int32)
    tables.vote(kernels, hidden, votes)
    kernels.close()
    return votes[0]


@pytest.mark.parametrize("method", ["simhash", "dwta"])
def test_near_labels_have_more_votes(method):
    tables = make_tables(method=method, l=64, k=2)
    tables.refresh(get_kernels("cpu", 1), WEIGHT, BIAS, 1)
    hidden = np.abs(np.random.default_rng(2).standard_normal((1, UNITS), dtype=np.float32))
    votes = votes_of(tables, hidden)
    order = np.argsort(-(WEIGHT @ hidden[0]))
    assert votes[order[:50]].mean() > 1.5 * votes.mean() > 0


@pytest.mark.parametrize("method", ["simhash", "dwta"])
def test_the_same_seed_gives_the_same_votes_for_any_lanes(method):
    hidden = WEIGHT[:200] + 1.0
    found = []
    for threads in (1, 2, 3):
        tables, kernels = make_tables(method=method), get_kernels("cpu", threads)
        tables.refresh(kernels, WEIGHT, BIAS, 200)
        kernels.close()
        found.append(votes_of(tables, hidden, threads))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    other = LabelTables(SamplingConfig(method=method), LABELS, UNITS, seed=2)
    other.refresh(get_kernels("cpu", 1), WEIGHT, BIAS, 200)
    assert (votes_of(other, hidden) != found[0]).any()


def test_intervals_grow():
    tables, kernels = make_tables(rebuild_every=100, rebuild_growth=2.0), get_kernels("cpu", 1)
    built = []
    for _ in range(16):
        tables.refresh(kernels, WEIGHT, BIAS, 50)
        built.append(tables.built)
    assert built == [1, 1, 2, 2, 2, 2] + 8 * [3] + 2 * [4]  # after 100, 200 and 400 rows
    tables.reset()
    tables.refresh(kernels, WEIGHT, BIAS, 50)
    assert tables.built == 1


def test_what_is_resumed_goes_on_with_the_same_bits():
    kernels, options = get_kernels("cpu", 1), {"rebuild_every": 100, "rebuild_growth": 1.5}
    first, second = make_tables(**options), make_tables(**options)
    weight = WEIGHT.copy()
    first.refresh(kernels, weight, BIAS, 60)
    weight += 0.5
    for name, array in second.state().items():
        array[...] = first.state()[name]
    second.resume(kernels)
    for _ in range(6):
        for tables in (first, second):
            tables.refresh(kernels, weight, BIAS, 60)
        assert first.built == second.built
        np.testing.assert_array_equal(*(votes_of(t, WEIGHT[:9]) for t in (first, second)))
        weight += 0.5
    assert first.built > 1


def test_tables_that_were_never_built_are_resumed_as_such():
    tables, kernels = make_tables(), get_kernels("cpu", 1)
    tables.resume(kernels)
    tables.refresh(kernels, WEIGHT, BIAS, 1)
    assert tables.built == 1


def test_threads_share_tables():
    """All of them find tables, and rows are counted once: as often built as by one thread."""
    tables, alone = (make_tables(rebuild_every=64, rebuild_growth=1.0, l=4) for _ in range(2))

    def work():
        kernels = get_kernels("cpu", 1)
        for _ in range(40):
            tables.refresh(kernels, WEIGHT, BIAS, 8)
            votes_of(tables, WEIGHT[:8])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(120):
        alone.refresh(get_kernels("cpu", 1), WEIGHT, BIAS, 8)
    assert 2 <= tables.built <= alone.built + 1
    np.testing.assert_array_equal(votes_of(tables, WEIGHT[:9]), votes_of(alone, WEIGHT[:9]))
