"""A model in one file, and as bytes: the same arrays, refused where it is damaged."""

import zipfile

import numpy as np
import pytest

import daskxml
from daskxml.cli import main
from daskxml.core.errors import ModelError


@pytest.fixture(scope="module")
def fitted():
    return daskxml.XMLClassifier().fit(np.eye(8), [["a", "b"], ["b"]] * 4)


def same(one, other):
    assert one.header == other.header
    assert one.parameters.keys() == other.parameters.keys()
    return all(np.array_equal(one.parameters[n], other.parameters[n]) for n in one.parameters)


def test_a_model_and_an_estimator_in_one_file(fitted, tmp_path):
    fitted.model_.save(tmp_path / "model.zip")
    fitted.save(tmp_path / "estimator.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["estimator.zip", "model.zip"]
    for name in ("model.zip", "estimator.zip"):
        assert same(daskxml.load(tmp_path / name), fitted.model_)
    again = daskxml.XMLClassifier.load(tmp_path / "estimator.zip")
    assert again.get_params() == fitted.get_params()
    assert again.predict_labels(np.eye(8)) == fitted.predict_labels(np.eye(8))
    with pytest.raises(ModelError, match="is there already"):
        fitted.save(tmp_path / "estimator.zip")
    fitted.save(tmp_path / "estimator.zip", overwrite=True)


def test_bytes(fitted):
    data = fitted.model_.to_bytes()
    found = daskxml.Model.from_bytes(data, threads=1)
    assert same(found, fitted.model_)
    assert found.threads == 1
    assert found.predict_labels(np.eye(8)) == fitted.model_.predict_labels(np.eye(8))
    for damaged in (b"", data[: len(data) // 2], data[:-100] + bytes(100)):
        with pytest.raises(ModelError, match="damaged"):
            daskxml.Model.from_bytes(damaged)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    with pytest.raises(ModelError, match="damaged"):
        daskxml.Model.from_bytes(bytes(flipped))


def test_a_compressed_file_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.safetensors", bytes(1 << 24))
    for load in (daskxml.load, daskxml.XMLClassifier.load):
        with pytest.raises(ModelError, match=r"damaged .compressed, as no model is"):
            load(path)
    with pytest.raises(ModelError, match="compressed"):
        daskxml.Model.from_bytes(path.read_bytes())


def test_commands_take_it(fitted, tmp_path, capsys):
    rows, model = tmp_path / "rows.txt", str(tmp_path / "model.zip")
    rows.write_text("2 8 2\n0 0:1\n1 1:1\n")
    fitted.model_.save(model)
    assert main(["compress", model, "--out", str(tmp_path / "small.zip")]) == 0
    assert main(["evaluate", str(tmp_path / "small.zip"), str(rows), "--json"]) == 0
    assert '"P@1"' in capsys.readouterr().out
