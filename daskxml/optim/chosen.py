"""Updates of chosen rows of a parameter: what is remembered of the others stays as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from daskxml.errors import ConfigError
from daskxml.ops import RowGradient, RowSums
from daskxml.optim.config import OptimizerConfig
from daskxml.optim.rule import Place, Rule
from daskxml.types import Array


class ChosenRows(ABC):
    """The part of `daskxml.optim.Optimizer` that a sampled output layer uses."""

    _config: OptimizerConfig
    _rules: Mapping[str, Rule]
    _step: int

    def chosen(self, name: str, ids: Array, grad: Array, lr: float) -> None:
        """Take the gradient of ``parameter[ids]``; what is remembered of other rows stays too."""
        rate = lr * self._config.lr_factor(name)
        gradient = RowGradient(grad.reshape(int(ids.shape[0]), -1), ids)
        self._rules[name].update(self._chosen_place(name), gradient, rate, self._step)

    def chosen_product(self, name: str, ids: Array, left: Array, right: Array, lr: float) -> None:
        """Take the gradient of ``parameter[ids]``, which is ``left.T @ right``."""
        rate = lr * self._config.lr_factor(name)
        place = self._chosen_place(name)
        self._update_by_product(self._rules[name], place, left, right, rate, ids)

    def chosen_sums(self, name: str, sums: RowSums, x: Array, lr: float) -> None:
        """Take the gradient of ``parameter[sums.ids]``: sums of rows of ``x``."""
        self._update_by_sums(name, self._chosen_place(name), sums, x, lr)

    def _chosen_place(self, name: str) -> Place:
        """A place whose rows can be chosen: each number of a vector is a row of its own."""
        if self._needs_all(name):
            raise ConfigError(
                f"optimizer: of {name} some rows change, others wait: it takes neither clip_norm "
                "nor lamb"
            )
        return self._place(name).by_rows()

    @abstractmethod
    def _needs_all(self, name: str) -> bool:
        """Whether nothing of this gradient can be applied before all of it is there."""

    @abstractmethod
    def _place(self, name: str, rows: slice = slice(None)) -> Place:
        """Rows of a parameter, with what its rule remembers of them."""

    @abstractmethod
    def _update_by_product(
        self, rule: Rule, place: Place, left: Array, right: Array, rate: float,
        ids: Array | None = None, first: int = 0,
    ) -> None:  # fmt: skip
        """Apply ``left.T @ right`` to the rows of a place in order, or to ``ids``."""

    @abstractmethod
    def _update_by_sums(
        self, name: str, place: Place, sums: RowSums, x: Array, lr: float, waits: bool = False
    ) -> None:
        """Apply sums of rows of ``x``."""
