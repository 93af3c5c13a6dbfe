"""What a kind of model is: all that the rest of the package asks of it.

A kind is a folder in `daskxml.models` and a line in `daskxml.models.kinds.KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.fields import Checked, bounded
from daskxml.kernels import Kernels

if TYPE_CHECKING:
    from daskxml.models.fitting import FitSettings, Fitter, Slot

Arrays = Mapping[str, Any]  # a model's parameters by their names
DEFAULT_KIND = "network"  # of a run file or a stored model that names none


@dataclass(frozen=True, kw_only=True)
class Spec(Checked):
    """The description of a model.

    Attributes
    ----------
    features, labels
        Columns of the input and of the output, at least 1.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    features: int = bounded(MISSING, low=1, high=2**31 - 1)
    labels: int = bounded(MISSING, low=1, high=2**31 - 1)
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if isinstance(value, list):  # from JSON or TOML
                object.__setattr__(self, name, tuple(value))
        super().__post_init__()

    @property
    def parameter_count(self) -> int:
        """Weights and biases; 0 where that is known only after training."""
        return 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in a JSON file; networks do not say their kind."""
        values = {each.name: _plain(getattr(self, each.name)) for each in fields(self)}
        return values if self.kind == DEFAULT_KIND else {**values, "kind": self.kind}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`as_dict`.

        Raises
        ------
        ConfigError
            If a name is unknown or missing, or a value out of range.
        """
        own = {name: value for name, value in values.items() if name != "kind"}
        unknown = sorted(own.keys() - {each.name for each in fields(cls)})
        missing = sorted({"features", "labels"} - own.keys())
        if unknown or missing:
            raise ConfigError(f"model: unknown {unknown}, missing {missing} among its values")
        return cls(**own)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.as_dict() if isinstance(value, Spec) else value


@dataclass(frozen=True)
class Limit:
    """What one section of a run file must be because of the others.

    Attributes
    ----------
    place
        ``section.key``, or a section.
    allowed
        Its values; one alone is the default, and the key has no use in this run file.
    why
        Follows the key and its value in the message.
    """

    place: str
    allowed: tuple[Any, ...]
    why: str


AnySpec = TypeVar("AnySpec", bound=Spec)
NAMES_BEFORE = {"mlp": "network", "tree": "trees", "mixture": "mix"}  # in models stored before


def stored_name(values: Mapping[str, Any], kinds: Collection[str]) -> str:
    """Return the name of the kind of a stored description.

    Raises
    ------
    ConfigError
        If it is none of ``kinds``.

    Examples
    --------
    >>> stored_name({"kind": "tree"}, ["network", "trees"]), stored_name({}, ["network"])
    ('trees', 'network')
    """
    given = values.get("kind", DEFAULT_KIND)
    name = NAMES_BEFORE.get(given, given) if isinstance(given, str) else ""
    if name not in kinds:
        raise ConfigError(f"kind = {given!r}: must be one of {', '.join(map(repr, kinds))}")
    return name


class Ranker(Protocol):
    """A trained model that ranks labels; several threads may call it at a time."""

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Array, Array]:
        """Ids and probabilities, ``(rows, k)``, best first; -1 where there are fewer."""

    def probabilities(self, segments: Sequence[Segment]) -> Array:
        """Probabilities of all labels, ``(rows, labels)`` float64; 0 where a beam lacks one."""


class ModelKind(Protocol[AnySpec]):
    """A kind of trained model."""

    title: str  # of several, in messages
    Spec: type[AnySpec]
    made_by: str = "train a run"  # how there comes to be one
    scores_all: bool = False  # its ranker also has `logits`

    def spec(self, values: Mapping[str, Any]) -> AnySpec:
        """Return the description that ``as_dict`` was made from.

        Raises
        ------
        ConfigError
            If a name is unknown or missing, or a value out of range.
        """
        return self.Spec.from_dict(values)

    def problem(self, spec: AnySpec, arrays: Arrays) -> str | None:
        """Return how arrays differ from those that the description asks for, if they do.

        Kernels trust arrays without a problem.
        """

    def ranker(self, spec: AnySpec, arrays: Arrays, kernels: Kernels) -> Ranker:
        """Return the model ready to rank; the arrays are not copied, ``kernels`` of the CPU."""

    def describe(self, spec: AnySpec, arrays: Arrays) -> str:
        """Return the sizes of a model in a few words."""

    def bound(self, spec: AnySpec, scores: Array) -> Any:
        """Return the score above which ranked labels, ``(rows, k)``, are chosen by default."""
        return 0.5

    def smaller(
        self, spec: AnySpec, arrays: Arrays, bits: int, drop: float
    ) -> tuple[AnySpec, dict[str, Any]]:
        """Return the description and the arrays of a smaller model; see `Model.compress`."""

    def extended(
        self, spec: AnySpec, arrays: Arrays, part: Partition, counts: Array, kernels: Kernels
    ) -> tuple[AnySpec, dict[str, Any]]:
        """Return the description and the arrays with labels that came later; see `Model.extend`.

        Parameters
        ----------
        spec, arrays
            Of the model without them.
        part, counts
            Scaled rows with labels old and new, and how many training rows each has.
        kernels
            Of the CPU.

        Raises
        ------
        ModelError
            If this kind takes none.
        """
        raise ModelError(f"{self.title} take no new labels: train a model of all labels")

    def explain(self, spec: AnySpec, arrays: Arrays, row: Csr, label: int) -> Array:
        """Return what each feature of a scaled row adds to a label's score.

        ``(nonzeros,)`` float64.

        Raises
        ------
        ConfigError
            If models of this kind are not explained.
        """


class TrainedKind(ModelKind[AnySpec], Protocol[AnySpec]):
    """A kind of model that a run file trains: ``[model] kind``."""

    strategy: str | None  # unless the run file names another; None: it is fitted in tasks
    needs_all_rows: bool  # on every worker
    scales_weights: bool  # of rows, to the mean 1
    row_s: float | None  # what a row takes to rank on a CPU; None: a network's products decide

    def limits(self, config: Any) -> Iterable[Limit]:
        """Return what the other sections of a run file, a `RunConfig`, must be."""
        return ()

    def figures(self, spec: AnySpec) -> dict[str, Any]:
        """Return what the event ``started`` reports of the model beyond its sizes."""
        return {}

    def work(self, row: Mapping[str, Any]) -> str:
        """Return how much is trained at a row of the history."""

    def prepare(
        self, parts: Sequence[Any], counts: Any, spec: AnySpec, seed: int,
        blocks: Sequence[tuple[Any, int, int]], submit: Callable[..., Any], threads: int = 1,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Return the description with what the rows decide, and what else fitting takes of them.

        Either may be what ``submit`` returns. By default nothing depends on the rows.

        Parameters
        ----------
        parts, blocks
            The training rows as partitions; and cut into blocks: partition, first row, row after
            the last.
        counts
            ``(labels,)``, how many of them have each label.
        spec, seed
            Of the run file, with the columns of the rows.
        submit
            Called with the name of a task, a function and its arguments, among which may be
            results of tasks.
        threads
            Of the process that computes a task.
        """
        return spec, None


class FittedKind(TrainedKind[AnySpec], Protocol[AnySpec]):
    """A kind that is fitted in tasks: one member after the other, each in pieces.

    `daskxml.session.fit_run` says in which order, `daskxml.models.fitting.Fitter` does it.
    ``[training] trees`` or ``epochs``, which of them `limits` allows, is the number of members.
    """

    strategy: str | None = None
    member: str  # of the model, in messages and in the names of its arrays: ``tree0.order``
    alike: tuple[str, ...] = ("kind", "features", "labels")  # in models to which members are added
    kept: tuple[str, ...] = ()  # what these members have of the model, not of their own rows
    needs_all_rows: bool = True
    scales_weights: bool = False
    row_s: float | None = 2e-5  # to descend trees by beam

    def limits(self, config: Any) -> Iterator[Limit]:
        """Yield what tasks need, and have no use for."""
        kind = f"[model] kind = {self.Spec.kind!r}"
        yield Limit("training.megabatches", (0,), f"{self.title} have none: leave it out")
        for key in ("pools", "pool_threads"):
            yield Limit(f"cluster.{key}", (0,), f"{kind} takes no pools: leave it at 0")
        why = f"{kind} needs all rows on every worker: leave it at 'auto'"
        yield Limit("data.residency", ("auto", "replicate"), why)
        why = f"{kind} has no loss over all rows: leave it out"
        yield Limit("evaluation.training_loss", (False,), why)

    def fitter(self, settings: FitSettings, slot: Slot) -> Fitter:
        """Return what computes the tasks in a process."""


def difference(
    wanted: Mapping[str, tuple[tuple[int, ...], str]], arrays: Mapping[str, Any]
) -> str | None:
    """Return how the shapes and dtypes of arrays differ from those that are wanted."""
    for name in sorted(wanted.keys() | arrays.keys()):
        found = (arrays[name].shape, str(arrays[name].dtype)) if name in arrays else "nothing"
        if found != wanted.get(name):
            asked = wanted.get(name, "nothing")
            return f"array {name!r} is {found}, but its spec asks for {asked}"
    return None


def part_arrays(arrays: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the arrays of one part of a model by its own names.

    Examples
    --------
    >>> part_arrays({"part0.output.bias": 1, "part1.output.bias": 2}, "part1")
    {'output.bias': 2}
    """
    start = f"{part}."
    return {
        name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)
    }


def split_arrays(arrays: Mapping[str, Any], what: str) -> list[dict[str, Any]]:
    """Return the arrays of each part of a model, by its own names.

    Examples
    --------
    >>> split_arrays({"tree0.order": 1, "tree1.order": 2}, "tree")
    [{'order': 1}, {'order': 2}]
    """
    parts: list[dict[str, Any]] = []
    while own := part_arrays(arrays, f"{what}{len(parts)}"):
        parts.append(own)
    return parts


def joined_arrays(parts: Sequence[Mapping[str, Any]], what: str) -> dict[str, Any]:
    """Return the arrays of all parts as a model stores them: ``tree0.order`` and so on."""
    return {
        f"{what}{number}.{name}": array
        for number, arrays in enumerate(parts)
        for name, array in arrays.items()
    }
