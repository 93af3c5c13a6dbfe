"""The description of label trees: their shape, and how the scores of their nodes are fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges
from daskxml.kernels.tree import Fit
from daskxml.models.network.spec import check_names

AUTO = "auto"
FIRST_BRANCHING = 32  # of trees that were stored before it could be chosen
MAX_CHILDREN = 1 << 16  # of a node: children are stored in 16 bits


@dataclass(frozen=True, kw_only=True)
class TreeSpec:
    """A few label trees, whose probabilities are averaged.

    Attributes
    ----------
    features, labels
        Columns of the input and of the output, at least 1.
    powers
        Rows of tree ``t`` are their values to the power ``powers[t % len(powers)]``, scaled to
        unit length again: trees that see rows differently err differently.
    leaf_labels
        Labels of a leaf's parent, about. More of them rank better, as fewer levels do, and take
        longer to fit.
    branching
        Most children of a node above those parents, rounded down to a power of two.
    solver
        How the scores of a node are fitted: ``dual``, by dual coordinate descent (Hsieh et al.,
        ICML 2008), or ``sgd``. What is ``auto``, here and below, is chosen on held-out rows of a
        few labels before the first tree is fitted (`daskxml.models.trees.search`).
    passes
        Over a node's rows.
    cost
        C of ``dual``: what the loss counts against half the weights' squared norm.
    lr
        First rate of ``sgd``, of a step by ``lr / |x|^2``.
    last_lr
        The last rate, as a share of the first.
    smallest_weight
        Weights below are dropped once their node is fitted.
    hard_negatives
        Labels that the first tree ranks highest for a training row: in the trees after it the nodes
        above them see the row as well, as a negative one where none of its own labels is below. 0:
        nodes see the rows with labels below alone.
    beam
        Nodes of a level that a row descends to.

    Raises
    ------
    ConfigError
        If a value is out of its range.

    Examples
    --------
    >>> TreeSpec(features=500, labels=21_764).level_bits
    (6,)
    >>> TreeSpec(features=500, labels=670_091).level_bits
    (6, 5)
    >>> TreeSpec(features=500, labels=159).level_bits
    ()
    """

    features: int = bounded(MISSING, low=1, high=2**31 - 1)
    labels: int = bounded(MISSING, low=1, high=2**31 - 1)
    kind: ClassVar[str] = "trees"
    parameter_count: ClassVar[int] = 0  # not known before the rows are
    powers: tuple[float, ...] = bounded((1.0,), above=0, high=10)
    leaf_labels: int = bounded(400, low=1, high=MAX_CHILDREN)
    branching: int = bounded(256, low=2, high=MAX_CHILDREN)
    solver: Literal["auto", "sgd", "dual"] = "auto"
    passes: int | Literal["auto"] = bounded(AUTO, low=1, high=10_000, words=(AUTO,))
    cost: float | Literal["auto"] = bounded(AUTO, above=0, words=(AUTO,))
    lr: float | Literal["auto"] = bounded(AUTO, above=0, words=(AUTO,))
    last_lr: float = bounded(0.02, low=0, high=1)
    smallest_weight: float = bounded(0.05, low=0)
    hard_negatives: int = bounded(0, low=0, high=1000)
    beam: int = bounded(10, low=1, high=MAX_CHILDREN)

    def __post_init__(self) -> None:
        object.__setattr__(self, "powers", tuple(self.powers))
        check_ranges(self)
        if not self.powers:
            raise ConfigError("powers = []: give one number or more", "powers")

    @property
    def is_open(self) -> bool:
        """Whether something is yet to be chosen on held-out rows."""
        return AUTO in (self.solver, self.passes, self.cost, self.lr)

    @property
    def fit(self) -> Fit:
        """How nodes are fitted, once that is chosen."""
        passes, cost, lr = self.passes, self.cost, self.lr
        assert self.solver != AUTO
        assert not isinstance(passes, str)
        assert not isinstance(cost, str)
        assert not isinstance(lr, str)
        return Fit(self.solver, passes, cost, lr, self.last_lr)

    @property
    def level_bits(self) -> tuple[int, ...]:
        """Logarithm of the children of a node, by level; the leaves' parents are not among them."""
        parents = -(-self.labels // self.leaf_labels)
        bits = min((parents - 1).bit_length(), self.labels.bit_length() - 1)
        levels = -(-bits // (self.branching.bit_length() - 1))
        return tuple(bits // levels + (level < bits % levels) for level in range(levels))

    def power_of(self, tree: int) -> float:
        """Return the power of a tree's values."""
        return self.powers[tree % len(self.powers)]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in a JSON file."""
        return {**asdict(self), "kind": self.kind, "powers": list(self.powers)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TreeSpec:
        """The inverse of :meth:`as_dict`.

        Raises
        ------
        ConfigError
            If a name is unknown or missing, or a value out of range.

        Examples
        --------
        >>> spec = TreeSpec(features=2, labels=3)
        >>> TreeSpec.from_dict(spec.as_dict()) == spec
        True
        """
        values = {name: value for name, value in values.items() if name != "kind"}
        check_names(values, {field.name for field in fields(cls)})
        return cls(**{"branching": FIRST_BRANCHING, **values})
