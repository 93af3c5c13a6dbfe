"""A run as a user asks for it: what may stand for rows."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from daskxml.api.run import resolve_run
from daskxml.core.errors import ConfigError

RUN = {"training": {"epochs": 1}}


@pytest.mark.parametrize(
    "given", [np.eye(3), scipy.sparse.eye_array(3), (np.eye(3), np.eye(3)), [1], ["a", None]],
    ids=["dense", "sparse", "pair", "number", "none"],
)  # fmt: skip
def test_what_is_no_path_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"^test: must be paths, or \(X, Y\)"):
        resolve_run(RUN, "/rows", given, [])


def test_paths_of_any_kind_become_absolute() -> None:
    given = (Path("/b") / name for name in ("1", "2"))
    data = resolve_run(RUN, given, "s3://a/b", []).data
    assert data.train == ("/b/1", "/b/2")
    assert data.test == ("s3://a/b",)
    assert resolve_run(RUN, "rows", None, []).data.train == (str(Path.cwd() / "rows"),)


@pytest.mark.parametrize("name", ["weights", "feature_names", "label_names"])
def test_files_beside_the_rows_become_absolute(name: str) -> None:
    data = resolve_run(RUN, "rows", None, [f"data.{name}=beside"]).data
    assert getattr(data, name) == str(Path.cwd() / "beside")
