"""The model that answers, and its replacement by a newer one while requests are under way."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from daskxml.models.store import HEADER_NAME
from daskxml.models.trained import Model


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model, ready to answer.

    Attributes
    ----------
    model
        With everything loaded and compiled that predictions need.
    version
        The first digits of the digest of its arrays.
    feature_ids
        The number of each feature by its name; empty if the model has none.
    """

    model: Model
    version: str
    feature_ids: dict[str, int]

    @classmethod
    def load(cls, directory: Path, threads: int) -> ServedModel:
        """Read, verify and warm up a model.

        Raises
        ------
        ModelError
            If there is none, or it is damaged.
        """
        model = Model.load(directory, threads=threads)
        model.warm_up()
        names = model.header.feature_names
        version = digest_of(directory) or ""
        return cls(model, version[:12], {name: column for column, name in enumerate(names)})


class Models:
    """The current model of a directory.

    Parameters
    ----------
    directory
        Of a model or a run.
    threads
        That one prediction uses.
    """

    def __init__(self, directory: Path, threads: int) -> None:
        self.directory = directory
        self._load = partial(ServedModel.load, directory, threads)
        self.current = self._load()
        self._loading = threading.Lock()

    def reload(self) -> bool:
        """Take the model that is in the directory now; return whether it is another one.

        Requests under way are answered by the one they began with. If this one cannot be read,
        the current one stays.

        Raises
        ------
        ModelError
            If there is none, or it is damaged.
        """
        with self._loading:
            if self.is_current():
                return False
            self.current = self._load()
            return True

    def is_current(self) -> bool:
        """Whether the directory still describes the current model."""
        return (digest_of(self.directory) or "")[:12] == self.current.version


def digest_of(directory: Path) -> str | None:
    """Return the digest of the arrays in a model's description; None without one."""
    try:
        described = json.loads((directory / HEADER_NAME).read_bytes())
        return str(described["tensors"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
