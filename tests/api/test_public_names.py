"""The names of the package: few, all there, and those that have gone say what takes their place."""

import pytest

import daskxml


def test_there_are_at_most_twenty_names() -> None:
    assert len(daskxml.__all__) <= 20
    assert all(getattr(daskxml, name) is not None for name in daskxml.__all__)
    assert set(daskxml.__all__) <= set(dir(daskxml))


@pytest.mark.parametrize(
    ("name", "successor"),
    [
        ("stop", r"take daskxml.attach\(run\).stop\(\)"),
        ("vectorize", r"take Pipeline.vectorize"),
        ("compress", r"take Model.compress"),
        ("ModelError", r"take daskxml.core.errors.ModelError"),
    ],
)
def test_a_name_that_has_gone_names_its_successor(name: str, successor: str) -> None:
    with pytest.raises(AttributeError, match=f"daskxml.{name} has gone; {successor}"):
        getattr(daskxml, name)
