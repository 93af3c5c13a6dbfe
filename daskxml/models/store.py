"""A trained model on disk: the arrays, ``model.safetensors``, and their header, ``model.json``.

Both files change together although each is renamed on its own. The new header is on the disk as
``model.json.next`` before the arrays are replaced, and becomes ``model.json`` afterwards; a reader
takes the header with the size and SHA-256 of the arrays. So a writer that is killed at any moment
leaves the old model or the new one. A model in one file is an archive of this directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from daskxml._version import __version__
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.files import check_folder, replace_durably, replace_text, replacing
from daskxml.core.text import parse_json
from daskxml.data.text import Vectorizer
from daskxml.kernels.operands import Quantised
from daskxml.models.decisions import Decisions
from daskxml.models.kinds import kind_of, spec_from_dict
from daskxml.models.protocol import Spec, difference
from daskxml.models.tensors import Arrays, read_tensors, save_tensors, views

ARCHIVE: Final = ".zip"
FORMAT: Final = "daskxml-model"
FORMAT_VERSION: Final = 1
TENSORS_NAME: Final = "model.safetensors"
HEADER_NAME: Final = "model.json"
LABEL_COUNTS: Final = "label_counts"
_NEXT_NAME: Final = "model.json.next"
_NAMES: Final = ("feature_names", "label_names")
_INDEX: Final = ".index."  # in names of arrays that daskxml once stored beside the weights
_DIGITS: Final = ("first", "second", "scale")  # ends of the names of a quantised matrix's arrays


@dataclass(frozen=True, kw_only=True)
class ModelHeader:
    """Metadata of a model.

    Attributes
    ----------
    spec
        Sizes, layers and loss.
    normalize
        Scaling of rows before training and predicting: "l2" or "none".
    feature_base, label_base
        The first id in the text files of the training data, 0 or 1.
    propensity_a, propensity_b
        Constants of PSP@k and PSnDCG@k, see ``daskxml.metrics.propensities``.
    training_rows
        Rows over which labels were counted.
    training
        Other JSON values.
    feature_names, label_names
        A name for each feature, and for each label; none where ids are all that is known.
    decisions
        Calibration and thresholds, where the model has them.
    vectorizer
        Makes rows of texts, where the model was trained on texts; its words are the feature names.

    Examples
    --------
    >>> from daskxml.models.network.spec import ModelSpec
    >>> ModelHeader(spec=ModelSpec(features=3, labels=2), training_rows=10).normalize
    'l2'
    """

    spec: Spec
    training_rows: int
    normalize: str = "l2"
    feature_base: int = 0
    label_base: int = 0
    propensity_a: float = 0.55
    propensity_b: float = 1.5
    training: Mapping[str, Any] = field(default_factory=dict)
    feature_names: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    decisions: Decisions | None = None
    vectorizer: Vectorizer | None = None

    def __post_init__(self) -> None:
        if self.normalize not in ("l2", "none"):
            raise ConfigError(f"normalize = {self.normalize!r}: must be 'l2' or 'none'")
        for name in ("feature_base", "label_base"):
            if getattr(self, name) not in (0, 1):
                raise ConfigError(f"{name} = {getattr(self, name)!r}: must be 0 or 1")
        if not (isinstance(self.training_rows, int) and self.training_rows >= 0):
            raise ConfigError(f"training_rows = {self.training_rows!r}: must be a whole number")
        for kind, columns in (("feature", self.spec.features), ("label", self.spec.labels)):
            check_names(kind, getattr(self, f"{kind}_names"), columns)
        if self.vectorizer is not None and self.vectorizer.columns != self.spec.features:
            found, features = self.vectorizer.columns, self.spec.features
            raise ConfigError(f"{found:,} columns of texts for {features:,} features")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in ``model.json``."""
        return {
            "spec": self.spec.as_dict(),
            "preprocessing": {
                "normalize": self.normalize,
                "feature_base": self.feature_base,
                "label_base": self.label_base,
            },
            "propensity": {"a": self.propensity_a, "b": self.propensity_b},
            "training_rows": self.training_rows,
            "training": dict(self.training),
            **{name: list(getattr(self, name)) for name in _NAMES if getattr(self, name)},
            **({"decisions": self.decisions.as_dict()} if self.decisions else {}),
            **({"text": self.vectorizer.as_dict()} if self.vectorizer else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelHeader:
        """Return the header that ``as_dict`` was made from.

        Raises
        ------
        KeyError, TypeError, ConfigError
            If a value is missing or invalid.
        """
        words = tuple(values.get("feature_names", ()))
        text = values.get("text")
        return cls(
            spec=spec_from_dict(dict(values["spec"])),
            propensity_a=float(values["propensity"]["a"]),
            propensity_b=float(values["propensity"]["b"]),
            training_rows=values["training_rows"],
            training=dict(values["training"]),
            **values["preprocessing"],
            feature_names=words,
            label_names=tuple(values.get("label_names", ())),
            decisions=Decisions.from_dict(values["decisions"]) if "decisions" in values else None,
            vectorizer=None if text is None else Vectorizer.from_dict(text, words),
        )


def check_names(kind: str, names: Sequence[str], columns: int) -> None:
    """Refuse names of features or labels that are not unique; none at all are allowed.

    Raises
    ------
    ConfigError
        If there are too few or too many, one is no text or empty, or one occurs twice.

    Examples
    --------
    >>> check_names("label", ["cat", "dog", "cat"], 3)
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: label 2 has the name 'cat' of label 0: names must differ
    """
    if names and len(names) != columns:
        raise ConfigError(f"{len(names):,} {kind} names for {columns:,} {kind}s: give one for each")
    known: dict[str, int] = {}
    for column, name in enumerate(names):
        if not isinstance(name, str) or not name:
            problem = f"{kind} {column} has the name {name!r}: must be a text of some length"
            raise ConfigError(problem)
        if name in known:
            before = known[name]
            problem = f"{kind} {column} has the name {name!r} of {kind} {before}: names must differ"
            raise ConfigError(problem)
        known[name] = column


def holds_model(directory: str | Path) -> bool:
    """Whether ``directory`` holds a model, or one of its files.

    Examples
    --------
    >>> holds_model("/no/such/directory")
    False
    """
    return any((Path(directory) / name).exists() for name in (HEADER_NAME, TENSORS_NAME))


@contextlib.contextmanager
def folder_to_write(path: str | Path, overwrite: bool) -> Iterator[Path]:
    """Yield the directory to write a model to; what is there becomes a file if the name says so.

    Parameters
    ----------
    path
        A directory; or a file whose name ends in ``.zip``, which is replaced at the end of the
        block. What is in it beside a model stays, as it would in a directory.
    overwrite
        Whether the file may be there already.

    Raises
    ------
    ModelError
        If it may not, or cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() != ARCHIVE:
        yield target
        return
    if target.exists() and not overwrite:
        raise ModelError(f"{target}: is there already; choose another name")
    with tempfile.TemporaryDirectory(prefix="daskxml-") as folder:
        if target.exists():
            with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(target) as archive:
                for member in archive.infolist():
                    is_of_model = member.filename in (HEADER_NAME, TENSORS_NAME)
                    if not is_of_model and member.compress_type == zipfile.ZIP_STORED:
                        archive.extract(member, folder)
        yield Path(folder)
        with replacing(target) as partial, zipfile.ZipFile(partial, "w") as archive:
            for file in sorted(Path(folder).iterdir()):
                archive.write(file, file.name)


@contextlib.contextmanager
def folder_to_read(path: str | Path) -> Iterator[Path]:
    """Yield the directory of a model, or one with what a file of `folder_to_write` holds.

    What is mapped of its arrays stays when that is removed at the end of the block.

    Raises
    ------
    ModelError
        If the file is damaged.
    """
    if Path(path).suffix.lower() != ARCHIVE or not Path(path).is_file():
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="daskxml-") as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                    raise zipfile.BadZipFile("compressed, as no model is")  # to any size
                archive.extractall(folder)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise ModelError(f"{path}: damaged ({error}); restore it, or train again") from error
        yield Path(folder)


def model_bytes(directory: str | Path) -> int:
    """Return the bytes of a model's two files, or of the one that it is in."""
    if Path(directory).is_file():
        return Path(directory).stat().st_size
    return sum((Path(directory) / name).stat().st_size for name in (HEADER_NAME, TENSORS_NAME))


def version_of(path: Path) -> str:
    """Return the version of the model that a directory, or a file, holds now; "" without one.

    It is of the header's digest, which covers the arrays' digest, names and calibration.
    """
    try:
        folder = zipfile.Path(path) if path.is_file() else path
        return str(json.loads((folder / HEADER_NAME).read_bytes())["sha256"])[:12]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return ""


def write_model(
    directory: str | Path,
    header: ModelHeader,
    parameters: Mapping[str, Any],
    label_counts: npt.NDArray[np.int64],
    *,
    overwrite: bool = False,
) -> None:
    """Write a model directory; it is created where missing, and an old model stays until the end.

    Parameters
    ----------
    directory
        Other files in it are left alone.
    header
        Metadata of the arrays.
    parameters
        By name, as the model's kind asks for; the weights of a network's first and output layer
        perhaps `Quantised`.
    label_counts
        ``(labels,)``: in how many training rows each label occurs.
    overwrite
        Whether an existing model may be replaced.

    Raises
    ------
    ModelError
        If there is a model already, the arrays do not match the header, or the disk is full.
    """
    directory = Path(directory)
    if holds_model(directory) and not overwrite:
        raise ModelError(f"{directory}: holds a model already; choose another directory")
    arrays: dict[str, Any] = {**parameters, LABEL_COUNTS: np.asarray(label_counts, dtype=np.int64)}
    _check_arrays(directory, header.spec, arrays)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{directory}: cannot be made ({error.strerror}); choose another"
        raise ModelError(problem) from error
    tensors = directory / TENSORS_NAME
    with replacing(tensors) as partial:
        save_tensors(partial, stored_arrays(arrays), {"format": FORMAT})
        _write_header(directory / _NEXT_NAME, header, partial)
    replace_durably(directory / _NEXT_NAME, directory / HEADER_NAME)


def read_model(
    directory: str | Path, *, verify: bool = True, mapped: bool = True
) -> tuple[ModelHeader, dict[str, Any], npt.NDArray[np.int64]]:
    """Read and verify a model directory.

    Parameters
    ----------
    directory
        Of the model.
    verify
        Read all arrays once to compare their digest. Otherwise the header's own digest, the size
        of the file, and names, shapes and dtypes of its arrays are checked: that takes
        milliseconds whatever the size, and notices a file that is cut off, but no flipped bit.
    mapped
        Otherwise the arrays are read into memory, and their file may change in place at any time.

    Returns
    -------
    header
        Metadata from ``model.json``.
    parameters
        By name, some perhaps `Quantised`. Pages of mapped ones are read when they are used, and
        what is written to the arrays stays in this process.
    label_counts
        ``(labels,)`` int64.

    Raises
    ------
    ModelError
        If something is missing, damaged, or of another version.
    """
    directory = Path(directory)
    if not directory.is_dir():
        problem = "a file, not a directory" if directory.exists() else "no such directory"
        raise ModelError(f"{directory}: {problem}; give the --out directory of a run")
    check_folder(directory)
    if not holds_model(directory):
        raise ModelError(f"{directory}: holds no model ({HEADER_NAME} is missing); train one first")
    header, data = _matching_header(directory, verify, mapped)
    tensors = directory / TENSORS_NAME  # whose bytes have just been verified
    try:
        arrays = read_tensors(tensors, verify=False)[0] if mapped else views(data)
        parameters = _put_together({n: a for n, a in arrays.items() if _INDEX not in f".{n}"})
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{directory}: damaged ({error}); restore it, or train again") from error
    _check_arrays(directory, header.spec, parameters)
    label_counts = parameters.pop(LABEL_COUNTS)
    return header, parameters, label_counts


def read_header(directory: Path) -> ModelHeader:
    """Return the header of a model; see `read_model` without ``verify``.

    Raises
    ------
    ModelError
        If it is missing, damaged, edited, or of other arrays.
    """
    return _matching_header(directory, verify=False, mapped=True)[0]


def stored_arrays(parameters: Mapping[str, Any]) -> Arrays:
    """Return the arrays of a file: three for each quantised matrix."""
    arrays: Arrays = {}
    for name, value in parameters.items():
        if isinstance(value, Quantised):
            arrays |= {f"{name}.{digit}": getattr(value, digit) for digit in _DIGITS}
        else:
            arrays[name] = value
    return arrays


def _put_together(arrays: Arrays) -> dict[str, Any]:
    """Return the inverse of `stored_arrays`.

    Raises
    ------
    ValueError
        If an array of a quantised matrix is missing or does not fit the others.
    """
    parameters: dict[str, Any] = dict(arrays)
    for name in [name for name in arrays if name.endswith(f".{_DIGITS[0]}")]:
        whole = name.removesuffix(f".{_DIGITS[0]}")
        digits = [f"{whole}.{digit}" for digit in _DIGITS]
        if whole in arrays or not arrays.keys() >= set(digits):
            raise ValueError(f"array {whole!r} is there twice, or only in part")
        parameters[whole] = Quantised(*map(parameters.pop, digits))
    return parameters


def _write_header(path: Path, header: ModelHeader, tensors: Path) -> None:
    """Write the header of the arrays in the unfinished file ``tensors``."""
    described = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "daskxml_version": __version__,
        **header.as_dict(),
        "tensors": {"file": TENSORS_NAME, **_fingerprint(tensors)},
    }
    described["sha256"] = _signature(described)
    replace_text(path, json.dumps(described, indent=2) + "\n")


def _matching_header(directory: Path, verify: bool, mapped: bool) -> tuple[ModelHeader, Any]:
    """Return the header of the arrays that are present; see the head of this module."""
    tensors = directory / TENSORS_NAME
    try:
        data = None if mapped else np.fromfile(tensors, np.uint8)
        found = _fingerprint(tensors, data) if verify else {"size_bytes": tensors.stat().st_size}
    except OSError as error:
        raise ModelError(f"{tensors}: cannot be read ({error.strerror}); restore it") from error
    failures: list[ModelError] = []
    for name in (HEADER_NAME, _NEXT_NAME, HEADER_NAME):  # twice: a writer may be between the two
        try:
            return _read_header(directory / name, found), data
        except ModelError as error:
            failures.append(error)
    raise failures[0]


def _read_header(path: Path, found: Mapping[str, Any]) -> ModelHeader:
    """Parse one header, and compare it with what was ``found``: the arrays' size, and digest."""
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
        version = (values["format"], values["format_version"])
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); restore it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: damaged (not a model's description); restore it") from error
    if version != (FORMAT, FORMAT_VERSION):
        raise ModelError(
            f"{path}: is {version[0]} {version[1]}, but daskxml {__version__} reads {FORMAT} "
            f"{FORMAT_VERSION}; use daskxml {values.get('daskxml_version')}, which wrote it"
        )
    if values.get("sha256") != _signature(values):
        raise ModelError(f"{path}: damaged or edited (its checksum differs); restore it")
    try:
        header, expected = ModelHeader.from_dict(values), dict(values["tensors"])
    except (KeyError, TypeError, ValueError, OverflowError, ConfigError) as error:
        raise ModelError(f"{path}: damaged ({error!r}); restore it") from error
    for key, value in found.items():
        if expected.get(key) != value:
            tensors = path.with_name(TENSORS_NAME)
            raise ModelError(
                f"{tensors}: damaged or of another model (its {key} is not the one that "
                f"{path.name} says); restore it, or train again"
            )
    return header


def _signature(described: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a header without the signature itself, independent of layout."""
    signed = {key: value for key, value in described.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()


def _fingerprint(path: Path, data: Any = None) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if data is None else hashlib.sha256(data)
    return {"size_bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _check_arrays(directory: Path, spec: Spec, arrays: Mapping[str, Any]) -> None:
    """Refuse arrays that are not the parameters of ``spec`` and the label counts."""
    parameters = {name: array for name, array in arrays.items() if name != LABEL_COUNTS}
    counts = {name: array for name, array in arrays.items() if name == LABEL_COUNTS}
    problem = difference({LABEL_COUNTS: ((spec.labels,), "int64")}, counts)
    if problem := problem or kind_of(spec).problem(spec, parameters):
        raise ModelError(f"{directory}: {problem}; these are not the arrays of one model")
