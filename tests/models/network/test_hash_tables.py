"""Hash tables over labels: how often vectors collide, when tables are built, what they find."""

import threading

import numpy as np
import pytest

from daskxml.kernels import get_kernels
from daskxml.models.network.hash_tables import LabelTables, SimHash, WinnerHash
from daskxml.models.network.sampling import SamplingConfig

LABELS, UNITS = 3000, 16
WEIGHT = np.random.default_rng(0).standard_normal((LABELS, UNITS), dtype=np.float32)
BIAS = np.zeros(LABELS, np.float32)
KERNELS = get_kernels("cpu", 1)


def make_tables(**options):
    return LabelTables(SamplingConfig(**{"method": "simhash", **options}), LABELS, UNITS, seed=1)


def votes_of(tables, hidden, threads=1):
    """How often rows and labels share a bucket."""
    kernels = get_kernels("cpu", threads)
    found = tables.lookup(kernels, hidden)
    kernels.close()
    assert (np.sort(found.members) == np.arange(LABELS)).all()
    return (tables.keys[:, :, None] == found.keys[:, None, :]).sum(axis=(0, 2))


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


def keys_of(family, tables, weight, bias=None):
    keys = np.empty((tables, len(weight)), np.int32)
    bias = np.zeros(len(weight), np.float32) if bias is None else bias
    family.label_keys(KERNELS, weight, bias, keys)
    return keys


@pytest.mark.parametrize("degrees", [0, 15, 45, 90, 135])
@pytest.mark.parametrize("bits", [1, 3, 6])
def test_simhash_collides_as_theory_says(degrees, bits):
    tables, angle = 4000, np.deg2rad(degrees)
    family = SimHash(2, tables, bits, np.random.default_rng(3))
    pair = np.array([[1, 0], [np.cos(angle), np.sin(angle)]], np.float32)
    keys = keys_of(family, tables, pair)
    expected = (1 - angle / np.pi) ** bits
    spread = np.sqrt(expected * (1 - expected) / tables)
    assert abs((keys[:, 0] == keys[:, 1]).mean() - expected) <= 4 * spread


def test_simhash_sees_the_bias():
    family = SimHash(3, 2000, 1, np.random.default_rng(0))
    weight, hidden = np.ones((1, 3), np.float32), np.ones((1, 3), np.float32)
    rows = np.empty((2000, 1), np.int32)
    family.row_keys(KERNELS, hidden, rows)
    shares = [
        (keys_of(family, 2000, weight, np.array([bias], np.float32)) == rows).mean()
        for bias in (-5.0, 0.0, 1.0)
    ]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0  # (1, 1, 1, 1) twice


@pytest.mark.parametrize("family_of", [SimHash, WinnerHash])
def test_every_bucket_is_reached(family_of):
    family = family_of(32, 2, 3, np.random.default_rng(0))
    weight = np.random.default_rng(1).standard_normal((40 * family.buckets, 32), dtype=np.float32)
    for keys in keys_of(
        family, 2, weight
    ):  # two bins may share columns: some winners exclude others
        assert len(np.unique(keys)) >= 0.9 * family.buckets


def test_winners_compare_only():
    family = WinnerHash(16, 50, 2, np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((5, 16), dtype=np.float32)
    keys = keys_of(family, 50, x)
    np.testing.assert_array_equal(keys_of(family, 50, np.exp(2 * x) - 3), keys)
    near = (keys_of(family, 50, x + 0.05) == keys).mean()
    far = (keys_of(family, 50, x[::-1].copy())[:, :2] == keys[:, :2]).mean()
    assert near > 0.9 > far


@pytest.mark.parametrize("units", [1, 2, 5, 8, 100])
def test_narrow_layers_have_smaller_bins(units):
    family = WinnerHash(units, 3, 2, np.random.default_rng(0))
    assert family.bins.shape[2] == min(8, 1 << (units.bit_length() - 1))
    x = np.random.default_rng(1).random((4, units), dtype=np.float32)
    keys = np.empty((3, 4), np.int32)
    family.row_keys(KERNELS, x, keys)
    assert ((keys >= 0) & (keys < family.buckets)).all()


def test_rows_of_zeros_and_ones_collide_with_their_likes():
    """Densification: rows with few entries, the same ones, share keys; others rarely do."""
    family = WinnerHash(64, 200, 1, np.random.default_rng(0))
    hidden = np.zeros((3, 64), np.float32)
    hidden[0, [5, 40]] = hidden[1, [5, 40]] = 1.0, 2.0
    hidden[2, [11, 60]] = 1.0, 2.0
    keys = np.empty((200, 3), np.int32)
    family.row_keys(KERNELS, hidden, keys)
    assert (keys[:, 0] == keys[:, 1]).all()
    assert (keys[:, 0] == keys[:, 2]).mean() < 0.5
