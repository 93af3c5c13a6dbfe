"""Exported networks give onnxruntime the answers that daskxml gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import daskxml
from daskxml.cli import main
from daskxml.core.errors import ConfigError, ModelError
from daskxml.models.kinds import MixtureSpec
from daskxml.models.mix.mixture import joined_arrays
from daskxml.models.network.spec import Layout, ModelSpec
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model

runtime = pytest.importorskip("onnxruntime")
FEATURES, LABELS = 30, 17


def model_of(normalize: str = "l2", **spec: Any) -> Model:
    rng = np.random.default_rng(3)
    described = ModelSpec(**{"features": FEATURES, "labels": LABELS, "hidden": (6,), **spec})
    slots = Layout(described).slots.items()
    held = {name: rng.standard_normal(slot.shape, np.float32) for name, slot in slots}
    names = tuple(f"tag {label}" for label in range(LABELS))
    header = ModelHeader(spec=described, training_rows=9, normalize=normalize, label_names=names)
    return Model(header, held, np.ones(LABELS, np.int64), threads=1)


def rows_of(count: int) -> sp.csr_matrix:
    rows = sp.random(count, FEATURES, 0.2, "lil", np.float32, rng=np.random.default_rng(1))
    rows[0] = 0  # an empty one
    return rows.tocsr()


def padded(rows: sp.csr_matrix) -> dict[str, Any]:
    widest = int(np.diff(rows.indptr).max())
    ids = np.zeros((rows.shape[0], widest), np.int64)
    values = np.zeros(ids.shape, np.float32)
    for number, row in enumerate(rows):
        ids[number, : row.nnz], values[number, : row.nnz] = row.indices, row.data
    return {"ids": ids, "values": values}


@pytest.mark.parametrize("normalize", ["l2", "none"])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    ("hidden", "activation"), [((), "relu"), ((6,), "relu"), ((6, 5), "sigmoid")]
)
def test_a_runtime_ranks_alike(
    tmp_path: Path, normalize: str, loss: str, hidden: tuple[int, ...], activation: str
) -> None:
    model = model_of(normalize, loss=loss, hidden=hidden, activation=activation)
    path = daskxml.export_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    X = rows_of(25)
    for k in (1, 5, LABELS):
        labels, scores = session.run(["labels", "scores"], padded(X) | {"k": np.array([k])})
        expected_ids, expected = model.predict_top_k(X, k)
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(labels, expected_ids)
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["label_names"]) == list(model.header.label_names)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_of().save(tmp_path / "model")
    out = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path / "model"), "--out", str(out)]) == 0
    assert f"to {out}" in capsys.readouterr().out
    assert runtime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "no" / "x.onnx")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    part = model_of()
    spec = MixtureSpec(
        features=FEATURES, labels=LABELS, parts=(part.network, part.network), weights=(0.5, 0.5)
    )
    header = ModelHeader(spec=spec, training_rows=9)
    mixture = Model(header, joined_arrays([part.parameters] * 2), part.label_counts)
    with pytest.raises(ConfigError, match="a mixture: ONNX has no operator"):
        daskxml.export_onnx(mixture, tmp_path / "x.onnx")
    with pytest.raises(ModelError, match="cannot be written"):
        daskxml.export_onnx(part, tmp_path)
