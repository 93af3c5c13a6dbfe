"""The exceptions that daskxml raises on purpose; the command line prints each as one line."""

from __future__ import annotations

from daskxml.core.text import one_line


class DaskxmlError(Exception):
    """An error that the user can fix: the message says what, where, and what to do."""

    @property
    def message(self) -> str:
        """The one line that the command line prints."""
        return one_line(str(self))


class InputError(DaskxmlError):
    """Data that cannot be read.

    Parameters
    ----------
    problem
        What is wrong and what to do, without the location.
    path, line
        The file (or URL) and the line, counted from 1, where it is wrong.
    """

    def __init__(self, problem: str, path: str | None = None, line: int | None = None) -> None:
        problem = one_line(problem)
        super().__init__(problem, path, line)  # all three, so that pickling keeps them
        self.problem, self.path, self.line = problem, path, line

    def __str__(self) -> str:
        place = [str(part) for part in (self.path, self.line) if part is not None]
        return ":".join(place) + ": " + self.problem if place else self.problem


class ConfigError(DaskxmlError):
    """A run file, or an option, with a wrong key or value.

    Parameters
    ----------
    problem
        What is wrong and what is allowed.
    key
        The key of the section that the problem is about, if it is one.
    """

    def __init__(self, problem: str, key: str = "") -> None:
        super().__init__(problem)
        self.key = key


class ModelError(DaskxmlError):
    """A file or directory that is damaged, of another version, or cannot be written."""


class TrainingError(DaskxmlError):
    """A run that cannot continue: its loss is not finite, or its model does not fit."""


class ClusterError(DaskxmlError):
    """A scheduler that cannot be reached, or workers that cannot take part."""


class CallbackWarning(UserWarning):
    """A callback or a logger has failed; the run continues."""


_DASK = ("Dask", "cluster")
_EXTRAS = {
    "sklearn": ("scikit-learn", "sklearn"), "dask": _DASK, "distributed": _DASK,
    "cloudpickle": _DASK, "bokeh": ("Bokeh", "cluster"), "jinja2": ("Jinja", "cluster"),
}  # fmt: skip


def needing(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error of a package that is missing, with what needs it and how to install it.

    Examples
    --------
    >>> needing("a cluster", ModuleNotFoundError(name="distributed.worker"))
    ModuleNotFoundError("a cluster needs Dask: pip install 'daskxml[cluster]'")
    """
    missing = (error.name or "").partition(".")[0]
    if missing not in _EXTRAS:
        return error
    package, extra = _EXTRAS[missing]
    text = f"{what} needs {package}: pip install 'daskxml[{extra}]'"
    return ModuleNotFoundError(text, name=missing)


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory.

    Examples
    --------
    >>> lacks_memory(MemoryError()), lacks_memory(RuntimeError("can't start new thread"))
    (True, True)
    """
    signs = ("can't start new thread", "failed to map segment", "Cannot allocate memory")
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)
