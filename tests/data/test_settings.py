"""Dataset cards: every one loads, and files are told from others by their checksums."""

import gzip
import hashlib

import pytest

from daskxml.core.errors import ConfigError, InputError
from daskxml.core.files import packaged
from daskxml.data.settings import load_card, verify_file

CARD = """
name = "tiny"
title = "three rows"
source = "https://example.org/tiny"
features = 4
labels = 2
features_per_row = 1.0
labels_per_row = 1.0
[propensity]
a = 0.5
b = 0.4
[train]
rows = 3
sha256 = "{digest}"
"""
TEXT = b"3 4 2\n0 1:1\n1 2:1\n0 3:1\n"


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(CARD.format(digest=hashlib.sha256(TEXT).hexdigest()))
    return load_card(str(path))


@pytest.mark.parametrize("name", sorted(packaged("datasets")))
def test_cards_are_whole_and_named_as_their_files(name):
    card = load_card(name)
    assert card.name == name
    assert card.features > 0
    assert card.labels > 0
    assert card.train.rows > 0
    assert card.source
    assert card.title


def test_a_card_gives_a_run_its_constants(tiny):
    assert tiny.data_values() == {
        "format": "xml",
        "feature_base": "auto",
        "label_base": 0,
        "propensity_a": 0.5,
        "propensity_b": 0.4,
    }


def test_the_demo_card_agrees_with_its_generator():
    card = load_card("demo")
    spec = card.synthetic
    assert (spec.rows, spec.test_rows) == (card.train.rows, card.test.rows)
    assert (spec.features, spec.labels) == (card.features, card.labels)
    assert spec.rows >= 20_000
    assert spec.features >= 5_000
    assert spec.labels >= 2_000


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz"])
def test_the_right_file_is_told_by_its_text(tiny, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT) if name.endswith(".gz") else TEXT)
    verify_file(tiny, "train", str(path))
    path.write_bytes(gzip.compress(TEXT * 2) if name.endswith(".gz") else TEXT * 2)
    with pytest.raises(InputError, match=r"not the train file.*https://example\.org/tiny"):
        verify_file(tiny, "train", str(path))


def test_what_cannot_be_verified_is_refused(tiny, tmp_path):
    verify_file(tiny, "test", "no/such/rows.txt")  # of which the card has no checksum
    with pytest.raises(InputError, match="cannot be read"):
        verify_file(tiny, "train", str(tmp_path / "absent.txt"))


def test_unknown_and_damaged_cards_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'bibtex'"):
        load_card("bibtx")
    path = tmp_path / "bad.toml"
    for text in ("name = ", 'name = "x"', 'colour = "red"'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="not a dataset card"):
            load_card(str(path))
