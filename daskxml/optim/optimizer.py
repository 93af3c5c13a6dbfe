"""From the gradients of a step, in the form in which they arise, to changed parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import sqrt

import numpy as np

from daskxml.ops import Drop, Kernels, RowGradient, RowSums
from daskxml.optim.adam import Adam
from daskxml.optim.chosen import ChosenRows
from daskxml.optim.config import OptimizerConfig
from daskxml.optim.gradient import GradientArrays
from daskxml.optim.lamb import Lamb
from daskxml.optim.momentum import Momentum, Nesterov
from daskxml.optim.rule import Place, Rule, as_rows, with_noise
from daskxml.optim.scratch import Scratch
from daskxml.optim.sgd import Sgd
from daskxml.optim.sums import update_by_product, update_by_sums
from daskxml.optim.touched import TouchedRows
from daskxml.types import Array, Csr

OPTIMIZERS: dict[str, type[Rule]] = {
    "sgd": Sgd, "momentum": Momentum, "nesterov": Nesterov, "adam": Adam, "lamb": Lamb,
}  # fmt: skip
FIRST_LAYER = "hidden0.weight"  # its rows are features, and wait where a gradient is zero
Views = Callable[[Array], Mapping[str, Array]]


class Optimizer(ChosenRows):
    """Applies gradients to the parameters.

    A step is ``begin_step``, then its gradients (calls for different ``rows`` of one parameter
    may come from several threads at the same time), then ``end_step``; or, where the gradient is
    there as a whole, ``begin_step`` and `apply`. What a rule can do with a part of the gradient it
    does at once; a first layer waits for all segments, and with ``clip_norm`` or a rule that looks
    at whole layers the gradient is collected until ``end_step``.

    Parameters
    ----------
    parameters
        Views by name, updated in place.
    views, size
        The same views of another flat array ``(size,)``: moments lie as the parameters do.
    partner
        An optimizer of the same kind over the same parameters, to have moments and the count of
        steps in common with. Both may step at the same time in different threads: updates of the
        moments may then be lost where they meet, as those of the parameters may.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> def views(flat):
    ...     return {"b": flat}
    >>> bias = kernels.zeros(2)
    >>> optimizer = Optimizer(OptimizerConfig(name="momentum"), kernels, views(bias), views, 2)
    >>> for _ in range(2):
    ...     optimizer.begin_step()
    ...     optimizer.dense("b", kernels.zeros(2) + 1, lr=0.5)
    ...     optimizer.end_step()
    >>> bias, optimizer.state()["momentum"], optimizer.state()["steps"]
    (array([-1.45, -1.45], dtype=float32), array([1.9, 1.9], dtype=float32), array([2]))
    """

    def __init__(
        self, config: OptimizerConfig, kernels: Kernels, parameters: Mapping[str, Array],
        views: Views, size: int, partner: Optimizer | None = None,
    ) -> None:  # fmt: skip
        self._config, self._kernels, self._parameters = config, kernels, parameters
        rules = {key: rule(config, kernels) for key, rule in OPTIMIZERS.items()}
        self._rules = {name: rules[config.rule_of(name)] for name in parameters}
        if partner is None:
            held = dict.fromkeys(name for rule in self._rules.values() for name in rule.moments)
            self._moments = {name: kernels.zeros(size) for name in held}
            self._steps = np.zeros(1, np.int64)  # on the host: nobody waits for it
        else:
            self._moments, self._steps = partner._moments, partner._steps
        self._moment_views = {name: views(flat) for name, flat in self._moments.items()}
        self._step, self._lr = 0, 0.0
        self._touched: dict[str, TouchedRows] = {}
        self._scratch = Scratch(kernels)
        room = {name: array.shape for name, array in parameters.items() if self._needs_all(name)}
        room.pop(FIRST_LAYER, None)  # never dense, see TouchedRows
        self._collected = GradientArrays(kernels, {n: kernels.zeros(s) for n, s in room.items()})

    # ------------------------------------------------------------------- a step

    def reserve(self, rows: int, nonzeros: int) -> None:
        """Allocate what steps of so many rows, with so many stored features, need beside moments.

        Raises
        ------
        MemoryError
            If the device has no room; nothing has changed then.
        """
        most = 0  # floats of a gradient that is formed in scratch memory
        for name, weight in self._parameters.items():
            count, width = as_rows(weight).shape
            if name == FIRST_LAYER:
                count = min(count, nonzeros)
                if not self._is_fused(name):
                    self._touched_rows(name).reserve(rows, nonzeros, self._needs_all(name))
            self._rules[name].reserve(count)
            if weight.ndim > 1 and not self._needs_all(name) and not self._is_fused(name):
                most = max(most, min(count * width, self._kernels.gradient_floats))
        if most:
            with self._scratch.borrow(most):
                pass

    def release(self) -> None:
        """Give back what `reserve` has allocated; between two steps."""
        self._touched, self._scratch = {}, Scratch(self._kernels)

    def begin_step(self) -> None:
        """Count a step."""
        self._steps += 1
        self._step = int(self._steps[0])

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """Take the gradient of ``parameter[rows]``, of the same shape."""
        self._lr = lr
        if name in self._collected.views:
            self._collected.dense(name, grad, lr, rows)
        else:
            self._update(name, RowGradient(as_rows(grad)), lr, rows)

    def product(
        self, name: str, rows: slice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> None:
        """Take the gradient of ``parameter[rows]``, which is ``scale * left.T @ right``."""
        self._lr = lr
        if name in self._collected.views:
            self._collected.product(name, rows, left, right, lr, scale)
            return
        rule, rate = self._rules[name], lr * self._config.lr_factor(name)
        place, begin = self._place(name, rows), rows.start or 0
        if not rule.fused_product(place, left, right, rate, scale):
            self._update_by_product(rule, place, left, right, rate, first=begin, scale=scale)

    def sparse_product(
        self, name: str, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> None:
        """Take ``x[rows].T @ delta``, a segment's part; zero for features that are not in use."""
        self._lr = lr
        rate = lr * self._config.lr_factor(name)
        place = self._place(name)
        if not self._needs_all(name) and self._rules[name].fused_sparse_product(
            place, x, rows, delta, rate, drop
        ):
            return
        self._touched_rows(name).add(x, rows, delta, drop)

    def end_step(self) -> None:
        """Apply what has waited for the end of the step."""
        views = self._collected.views
        whole = {name: RowGradient(as_rows(array)) for name, array in views.items()}
        for name, touched in self._touched.items():
            touched.group()
            if self._needs_all(name):
                grad, ids = touched.whole_gradient(), touched.sums().ids
                whole[name] = RowGradient(grad, ids, waits=True, live=touched.live)
            else:
                sums, place = touched.sums(), self._place(name)
                self._update_by_sums(name, place, sums, touched.deltas, self._lr, waits=True)
        self._apply(whole, self._lr)
        self._forget_step()

    def apply(self, gradient: Mapping[str, Array], lr: float) -> None:
        """Take all of a step's gradient at once, after ``begin_step``.

        Parameters
        ----------
        gradient
            An array of each parameter's shape by its name, as `GradientBuffer.views` has them.
            Rows of the first layer that are zero throughout count as not touched.
        lr
            Learning rate.

        Examples
        --------
        >>> from daskxml.ops import get_kernels
        >>> kernels = get_kernels("cpu", 1)
        >>> bias = kernels.zeros(2)
        >>> config = OptimizerConfig(clip_norm=5.0)
        >>> optimizer = Optimizer(config, kernels, {"b": bias}, lambda flat: {"b": flat}, 2)
        >>> optimizer.begin_step()
        >>> optimizer.apply({"b": kernels.to_device(bias + [6.0, 8.0])}, lr=1.0)
        >>> bias
        array([-3., -4.], dtype=float32)
        """
        self._apply(
            {
                name: RowGradient(as_rows(array), waits=name == FIRST_LAYER)
                for name, array in gradient.items()
            },
            lr,
        )

    # -------------------------------------------------------------------- state

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold to go on with the same bits.

        Returns
        -------
        dict
            Moments by name, flat ``(size,)`` float32, and ``steps`` ``(1,)`` int64; nothing where
            the rules remember nothing. The arrays are the optimizer's own, the last one the host's:
            write into them to restore a state.
        """
        return {**self._moments, "steps": self._steps} if self._moments else {}

    def reset(self) -> None:
        """Forget all moments and steps, as new."""
        self._steps[:] = 0
        for array in self._moments.values():
            self._kernels.fill(array, 0)
        self._forget_step()

    @property
    def nbytes(self) -> int:
        """Bytes of moments and buffers."""
        arrays = (*self._moments.values(), *self._collected.views.values())
        buffers = self._scratch.nbytes + sum(held.nbytes for held in self._touched.values())
        buffers += sum(rule.nbytes for rule in {*self._rules.values()})
        return buffers + sum(int(array.nbytes) for array in arrays)

    # ------------------------------------------------------------------ inside

    def _forget_step(self) -> None:
        self._collected.clear()
        for touched in self._touched.values():
            touched.clear()

    def _is_fused(self, name: str) -> bool:
        """Whether gradients go into this parameter without being written out."""
        decays = name == FIRST_LAYER and self._config.weight_decay > 0.0
        plain = not (self._needs_all(name) or decays or self._place(name).is_narrow)
        return self._rules[name].is_fused and plain

    def _touched_rows(self, name: str) -> TouchedRows:
        if name not in self._touched:
            self._touched[name] = TouchedRows(self._kernels, *self._parameters[name].shape)
        return self._touched[name]

    def _needs_all(self, name: str) -> bool:
        """Whether nothing of this gradient can be applied before all of it is there."""
        return self._config.clip_norm > 0.0 or self._rules[name].is_layerwise

    def _place(self, name: str, rows: slice = slice(None)) -> Place:
        weight = self._parameters[name]
        names = self._rules[name].moments
        moments = tuple(as_rows(self._moment_views[moment][name][rows]) for moment in names)
        return Place(as_rows(weight[rows]), moments, weight.ndim > 1)

    def _update(
        self, name: str, gradient: RowGradient, lr: float, rows: slice = slice(None)
    ) -> None:
        rate, place = lr * self._config.lr_factor(name), self._place(name, rows)
        noisy = with_noise(place, gradient, self._step, rows.start or 0)
        self._rules[name].update(place, noisy, rate, self._step)

    def _update_by_product(
        self, rule: Rule, place: Place, left: Array, right: Array, rate: float,
        ids: Array | None = None, first: int = 0, scale: float = 1.0,
    ) -> None:  # fmt: skip
        def update(span: slice, gradient: RowGradient) -> None:
            rows = place if ids is not None else place.rows(span)
            noisy = with_noise(rows, gradient, self._step, first + span.start)
            rule.update(rows, noisy, rate, self._step)

        update_by_product(self._kernels, self._scratch, left, right, ids, update, scale)

    def _update_by_sums(
        self, name: str, place: Place, sums: RowSums, x: Array, lr: float, waits: bool = False
    ) -> None:
        rule, rate = self._rules[name], lr * self._config.lr_factor(name)

        def update(gradient: RowGradient) -> None:
            rule.update(place, gradient, rate, self._step)

        update_by_sums(self._kernels, self._scratch, sums, x, waits, update)

    def _apply(self, gradients: Mapping[str, RowGradient], lr: float) -> None:
        scale = self._clipped(gradients)
        for name, gradient in gradients.items():
            self._update(name, replace(gradient, scale=scale), lr)

    def _clipped(self, gradients: Mapping[str, RowGradient]) -> float:
        """What the gradient is multiplied by, to be no longer than it may."""
        if not self._config.clip_norm:
            return 1.0
        flats = (gradient.values.reshape(-1) for gradient in gradients.values())
        norm = sqrt(sum(self._kernels.squared_norm(flat) for flat in flats))
        return self._config.clip_norm / norm if norm > self._config.clip_norm else 1.0
