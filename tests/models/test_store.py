import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import daskxml
from daskxml.cli import main
from daskxml.core.errors import ConfigError, ModelError
from daskxml.models.network.spec import Layout, ModelSpec
from daskxml.models.store import ModelHeader, _signature, holds_model, read_model, write_model

SPEC = ModelSpec(features=5, labels=4, hidden=(3,))
HEADER = ModelHeader(
    spec=SPEC,
    training_rows=100,
    normalize="none",
    feature_base=1,
    propensity_a=0.6,
    propensity_b=2.6,
    training={"megabatches": 7, "data": ["train.txt"]},
)
COUNTS = np.arange(4)


def parameters(value: float, spec: ModelSpec = SPEC) -> dict[str, np.ndarray]:
    slots = Layout(spec).slots
    return {name: np.full(slot.shape, value, np.float32) for name, slot in slots.items()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_model(tmp_path / "run", HEADER, parameters(1.0), COUNTS)
    return tmp_path / "run"


def stored_value(directory: Path) -> float:
    """The one value of all parameters, and so which model it is."""
    values = list(read_model(directory)[1].values())
    (value,) = {float(entry) for array in values for entry in np.unique(array)}
    return value


def test_what_was_written_is_read(directory: Path) -> None:
    header, arrays, counts = read_model(directory)
    assert header == HEADER
    assert list(arrays) == list(parameters(1.0)) or arrays.keys() == parameters(1.0).keys()
    assert all(np.array_equal(arrays[n], array) for n, array in parameters(1.0).items())
    np.testing.assert_array_equal(counts, COUNTS)


def test_the_directory_holds_two_files_that_others_can_read(directory: Path) -> None:
    assert sorted(path.name for path in directory.iterdir()) == ["model.json", "model.safetensors"]
    described = json.loads((directory / "model.json").read_text())
    assert described["format"] == "daskxml-model"
    assert described["tensors"]["size_bytes"] == (directory / "model.safetensors").stat().st_size
    assert described["preprocessing"] == {"normalize": "none", "feature_base": 1, "label_base": 0}
    arrays = load_file(directory / "model.safetensors")
    assert arrays.keys() == parameters(1.0).keys() | {"label_counts"}


def test_a_model_is_only_replaced_on_request(directory: Path) -> None:
    with pytest.raises(ModelError, match="holds a model already"):
        write_model(directory, HEADER, parameters(2.0), COUNTS)
    assert stored_value(directory) == 1.0
    write_model(directory, HEADER, parameters(2.0), COUNTS, overwrite=True)
    assert stored_value(directory) == 2.0
    assert sorted(path.name for path in directory.iterdir()) == ["model.json", "model.safetensors"]


def test_other_files_of_a_run_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text("{}\n")
    assert not holds_model(tmp_path)
    write_model(tmp_path, HEADER, parameters(1.0), COUNTS)
    assert holds_model(tmp_path)
    assert (tmp_path / "history.jsonl").read_text() == "{}\n"


def corrupt(path: Path, place: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)


DAMAGE = {
    "flipped bit": (lambda d: corrupt(d / "model.safetensors", -3), r"safetensors: damaged"),
    "flipped header": (lambda d: corrupt(d / "model.safetensors", 9), r"its sha256"),
    "cut": (lambda d: cut(d / "model.safetensors"), r"its size_bytes"),
    "no arrays": (lambda d: (d / "model.safetensors").unlink(), r"safetensors: cannot be read"),
    "no description": (lambda d: (d / "model.json").unlink(), r"model.json: cannot be read"),
    "not JSON": (lambda d: (d / "model.json").write_text("{"), r"model.json: damaged"),
    "not text": (lambda d: (d / "model.json").write_bytes(b"\xff\0"), r"model.json: damaged"),
    "not an object": (lambda d: (d / "model.json").write_text("[1]"), r"model.json: damaged"),
    "other version": (lambda d: edit(d, format_version=2), "model 2, but daskxml .* reads"),
    "other format": (lambda d: edit(d, format="plt"), "is plt 1, but"),
    "no spec": (lambda d: edit(d, spec=None), r"model.json: damaged"),
    "bad spec": (lambda d: edit(d, spec=SPEC.as_dict() | {"labels": -4}), "damaged .*labels"),
    "strange spec": (lambda d: edit(d, spec=SPEC.as_dict() | {"x": 1}), r"model.json: damaged"),
    "other shapes": (lambda d: edit(d, spec=SPEC.as_dict() | {"hidden": [2]}), "'hidden0.bias'"),
    "more layers": (lambda d: edit(d, spec=SPEC.as_dict() | {"hidden": [3, 3]}), "is nothing"),
    "bad preprocessing": (lambda d: edit(d, preprocessing={"normalize": "l1"}), "normalize"),
    "edited": (lambda d: rewrite(d, '"training_rows": 100', '"training_rows": 900'), "or edited"),
    "no digest": (lambda d: edit(d, tensors={}), r"its size_bytes"),
}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def rewrite(directory: Path, old: str, new: str) -> None:
    path = directory / "model.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def edit(directory: Path, **changes: object) -> None:
    path = directory / "model.json"
    described = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(described | {"sha256": _signature(described)}))


def test_an_index_of_labels_that_was_once_stored_is_ignored(directory: Path) -> None:
    path = directory / "model.safetensors"
    more = {"index.order": COUNTS, "index.groups.first": np.ones((2, 3), np.int8)}
    save_file(load_file(path) | more, path, {"format": "daskxml-model"})
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    edit(directory, tensors={"size_bytes": len(content), "sha256": digest})
    assert read_model(directory)[1].keys() == parameters(1.0).keys()
    assert stored_value(directory) == 1.0


def test_every_flipped_bit_of_the_description_is_noticed(directory: Path) -> None:
    path = directory / "model.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        corrupt(path, place)
        with contextlib.suppress(ModelError):  # else the flip fell on white space
            assert read_model(directory)[0] == HEADER
        path.write_bytes(whole)


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_in_one_line(directory: Path, name: str) -> None:
    damage, message = DAMAGE[name]
    damage(directory)
    if name == "flipped bit":  # which is not noticed without reading the arrays
        read_model(directory, verify=False)
    else:  # of a header that is flipped the names and places of arrays are wrong
        with pytest.raises(ModelError, match="damaged" if name == "flipped header" else message):
            read_model(directory, verify=False)
    with pytest.raises(ModelError, match=message) as caught:
        read_model(directory)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no model"):
        read_model(tmp_path)
    with pytest.raises(ModelError, match="no such directory"):
        read_model(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="a file, not a directory"):
        read_model(tmp_path / "file")
    with pytest.raises(ModelError, match="cannot be made"):
        write_model(tmp_path / "file" / "run", HEADER, parameters(1.0), COUNTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output.bias": np.zeros(3, np.float32)}, "'output.bias' is"),
        ({"output.bias": np.zeros(4)}, "float64"),
        ({"surplus": np.zeros(4, np.float32)}, "'surplus'"),
    ],
)
def test_arrays_that_do_not_match_are_not_written(tmp_path: Path, change, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        write_model(tmp_path, HEADER, parameters(1.0) | change, COUNTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"normalize": "l1"}, {"label_base": 2}, {"training_rows": -1}])
def test_a_header_checks_itself(change: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(HEADER, **change)


WRITER = """
import os, resource, signal, sys
import numpy as np
from daskxml.core.errors import ModelError
from daskxml.models import tensors
from tests.models.test_store import COUNTS, HEADER, Path, parameters
from daskxml.models.store import write_model
directory, steps = Path(sys.argv[1]), int(sys.argv[2])
replace, done = Path.replace, 0
def step(self, target):
    global done
    if done == steps:
        os.kill(os.getpid(), signal.SIGKILL)
    done += 1
    return replace(self, target)
Path.replace = step
write_model(directory, HEADER, parameters(2.0), COUNTS, overwrite=True)
"""


def write_and_die(directory: Path, renames: int) -> int:
    """Write a second model in another process, killed when so many of its renames are done."""
    command = [sys.executable, "-c", WRITER, str(directory), str(renames)]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, timeout=60, check=False).returncode


@pytest.mark.parametrize(
    ("renames", "value"), [(0, 1.0), pytest.param(1, 1.0, marks=pytest.mark.slow), (2, 2.0)]
)
def test_a_killed_writer_leaves_the_old_model_or_the_new(
    directory: Path, renames: int, value: float
) -> None:
    assert write_and_die(directory, renames) == -signal.SIGKILL
    assert stored_value(directory) == value
    write_model(directory, HEADER, parameters(3.0), COUNTS, overwrite=True)
    assert stored_value(directory) == 3.0
    assert sorted(path.name for path in directory.iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("renames", [0, 1])
def test_a_killed_first_writer_leaves_no_model(tmp_path: Path, renames: int) -> None:
    assert write_and_die(tmp_path, renames) == -signal.SIGKILL
    with pytest.raises(ModelError, match="holds no model"):
        read_model(tmp_path)
    write_model(tmp_path, HEADER, parameters(1.0), COUNTS)
    assert stored_value(tmp_path) == 1.0


def test_the_last_rename_is_all_that_a_killed_first_writer_may_miss(tmp_path: Path) -> None:
    assert write_and_die(tmp_path, 2) == -signal.SIGKILL
    assert stored_value(tmp_path) == 2.0


def test_a_full_disk_leaves_the_old_model(directory: Path) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200, {2**30}))\n"
    script = limit + WRITER + "\n"
    command = [sys.executable, "-B", "-c", script, str(directory), "9"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert "model.safetensors: cannot be written" in done.stderr
    assert stored_value(directory) == 1.0
    assert sorted(path.name for path in directory.iterdir()) == ["model.json", "model.safetensors"]


# -------------------------------------------------------- one file, and bytes


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


def test_ids_of_an_estimator_stay_where_its_model_is_calibrated_in_place(tmp_path):
    X, ids = np.eye(30, dtype=np.float32), [[10 * row + 7] for row in range(30)]
    fitted = daskxml.XMLClassifier("tree").fit(X, ids)
    expected = fitted.predict_labels(X, 1)
    for name in ("estimator", "estimator.zip"):
        fitted.save(path := tmp_path / name)
        daskxml.load(path).calibrate(X, np.eye(30)).save(path, overwrite=True)
        assert daskxml.load(path).header.decisions is not None
        assert daskxml.XMLClassifier.load(path).predict_labels(X, 1) == expected
        assert daskxml.load(path).predict_labels(X, 1) == [[str(row[0])] for row in expected]


def test_an_estimator_of_another_model_is_not_taken(tmp_path):
    X, first, other = np.eye(3, dtype=np.float32), [["a"], ["b"], ["c"]], [["x"], ["y"], ["z"]]
    daskxml.XMLClassifier("tree").fit(X, first).save(tmp_path / "model")
    for labels in (other, [["x", "u"], ["y"], ["z"]]):
        model = daskxml.XMLClassifier("tree").fit(X, labels).model_
        model.save(tmp_path / "model", overwrite=True)
        again = daskxml.XMLClassifier.load(tmp_path / "model")
        assert again.predict_labels(X, 1) == model.predict_labels(X, 1)
