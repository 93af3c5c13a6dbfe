"""The description of a model checks itself."""

import pytest

from daskxml.core.errors import ConfigError
from daskxml.models.network.spec import ModelSpec


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("features", 0, "integer of at least 1"),
        ("labels", 2.5, "integer of at least 1"),
        ("labels", "many", "integer of at least 1"),
        ("hidden", (128, 0), "integers of at least 1"),
        ("activation", "tanh", "one of relu, sigmoid"),
        ("loss", "hinge", "one of softmax, sigmoid"),
        ("dropout", 1.0, r"in \[0, 1\)"),
        ("feature_dropout", -0.1, r"in \[0, 1\)"),
        ("feature_dropout", float("nan"), r"in \[0, 1\)"),
        ("output_bias", float("inf"), r"in \[-1000, 1000\]"),
        ("init_scale", 0.0, r"in \(0, 1000\]"),
        ("init_scale", "big", r"in \(0, 1000\]"),
    ],
)
def test_wrong_values_name_field_value_and_range(field, value, rule):
    with pytest.raises(ConfigError, match=rf"model\.{field} = .*{rule}"):
        ModelSpec(**{"features": 3, "labels": 4, field: value})


def test_dictionary_and_back():
    spec = ModelSpec(features=3, labels=4, hidden=(5, 6), loss="sigmoid", output_bias=-5.0)
    assert ModelSpec.from_dict(spec.as_dict()) == spec
    assert spec.widths == (3, 5, 6, 4)


def test_unknown_and_missing_names_are_refused():
    with pytest.raises(ConfigError, match=r"unknown \['depth'\], missing \['labels'\]"):
        ModelSpec.from_dict({"features": 3, "depth": 2})
