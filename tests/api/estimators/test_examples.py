"""The scripts of the documentation run."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "docs/examples"


@pytest.mark.slow
def test_the_search_over_texts_and_names_finds_settings(capsys):
    search = runpy.run_path(str(EXAMPLES / "search_tags.py"))["main"]()
    assert search.best_score_ > 0.9
    assert "P@2" in capsys.readouterr().out
    (found,) = search.best_estimator_[-1].predict_labels(
        search.best_estimator_[0].transform(["a yellow bus"]), k=2
    )
    assert set(found) == {"vehicle", "yellow"}
