"""Hash functions: how often vectors collide, and that every bucket can be reached."""

import numpy as np
import pytest

from daskxml.kernels import get_kernels
from daskxml.models.network.sampling.hash_tables import SimHash, WinnerHash

KERNELS = get_kernels("cpu", 1)


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
