"""When rules are applied: from the gradients of a step, in the forms in which they arise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import sqrt

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.kernels.operands import Drop, InPlace, RowGradient, RowSums
from daskxml.optim.config import OptimizerConfig
from daskxml.optim.gradient import SparseGradient
from daskxml.optim.rules import OPTIMIZERS, ParameterSlice, Rule, as_rows

FIRST_LAYER = "hidden0.weight"  # its rows are features: skipped where their gradient is zero
Views = Callable[[Array], Mapping[str, Array]]
Target = tuple[Rule, ParameterSlice, float]  # by which rule, what, and at which rate


class Scratch:
    """Flat float32 arrays for threads to borrow: as many as were ever borrowed at a time.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> scratch = Scratch(get_kernels("cpu", 1))
    >>> for _ in range(3):
    ...     with scratch.borrow(4) as memory:
    ...         shape = memory.shape
    >>> shape, scratch.nbytes
    ((4,), 16)
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._free: list[Array] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are not borrowed."""
        return sum(int(array.nbytes) for array in self._free)

    @contextmanager
    def borrow(self, floats: int) -> Iterator[Array]:
        """Lend an array of at least ``floats`` floats; its contents are arbitrary."""
        try:
            memory = self._free.pop()  # atomic: no two threads get the same
        except IndexError:
            memory = self._kernels.empty(floats)
        if memory.shape[0] < floats:
            memory = self._kernels.empty(floats)
        try:
            yield memory
        finally:
            self._free.append(memory)


class Optimizer:
    """Applies gradients to the parameters.

    A step is ``begin_step``, then its gradients (calls for different ``rows`` of one parameter
    may come from several threads at the same time), then ``end_step``; or, with the whole
    gradient, ``begin_step`` and `apply`. A part of the gradient is applied at once if the rule can;
    the first layer is updated once for all segments, and with ``clip_norm`` or a layerwise rule the
    gradient is collected until ``end_step``.

    Parameters
    ----------
    parameters
        Views by name, updated in place.
    views, size
        The same views of another flat array ``(size,)``, in which moments are laid out.
    partner
        An optimizer of the same kind over the same parameters, whose moments and step count are
        shared. Both may step at the same time in different threads; concurrent updates of the
        moments may then be lost, as those of the parameters may.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> def views(flat):
    ...     return {"b": flat}
    >>> bias = kernels.zeros(2)
    >>> optimizer = Optimizer(OptimizerConfig(name="momentum"), kernels, views(bias), views, 2)
    >>> for _ in range(2):
    ...     optimizer.begin_step()
    ...     optimizer.dense("b", kernels.zeros(2) + 1, lr=0.5)
    ...     optimizer.end_step(lr=0.5)
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
            names = dict.fromkeys(name for rule in self._rules.values() for name in rule.moments)
            self._moments = {name: kernels.zeros(size) for name in names}
            self._steps = np.zeros(1, np.int64)  # on the host: read without synchronizing
        else:
            self._moments, self._steps = partner._moments, partner._steps
        self._moment_views = {name: views(flat) for name, flat in self._moments.items()}
        self._step = 0
        self._wholes: dict[str, ParameterSlice] = {}
        self._sparse: dict[str, SparseGradient] = {}
        self._scratch = Scratch(kernels)
        self._sum: Rule = OPTIMIZERS["sgd"](OptimizerConfig(), kernels)  # at the rate -1
        self._collected = {
            name: kernels.zeros(array.shape)
            for name, array in parameters.items()
            if self._needs_all(name) and name != FIRST_LAYER  # which is never dense
        }

    # ------------------------------------------------------------------- a step

    def reserve(self, rows: int, nonzeros: int) -> None:
        """Allocate buffers for steps of so many rows with so many stored features.

        Raises
        ------
        MemoryError
            If the device does not have enough memory; nothing has changed then.
        """
        most = 0  # floats of a gradient that is materialized in scratch memory
        for name, weight in self._parameters.items():
            count, width = as_rows(weight).shape
            if name == FIRST_LAYER:
                count = min(count, nonzeros)
                if not self._is_fused(name):
                    self._sparse_gradient(name).reserve(rows, nonzeros, self._needs_all(name))
            self._rules[name].reserve(count)
            if weight.ndim > 1 and not self._needs_all(name) and not self._is_fused(name):
                most = max(most, min(count * width, self._kernels.gradient_floats))
        if most:
            with self._scratch.borrow(most):
                pass

    def release(self) -> None:
        """Free what `reserve` has allocated; between two steps."""
        self._sparse, self._scratch = {}, Scratch(self._kernels)

    def begin_step(self) -> None:
        """Count a step."""
        self._steps += 1
        self._step = int(self._steps[0])

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """Apply the gradient of ``parameter[rows]``, of the same shape."""
        rule, target, rate = self._target(name, lr, rows)
        rule.update(target, RowGradient(as_rows(grad)), rate, self._step)

    def product(
        self, name: str, rows: slice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> None:
        """Apply the gradient ``scale * left.T @ right`` of ``parameter[rows]``."""
        rule, target, rate = self._target(name, lr, rows)
        if rule.is_fused:
            keep = rule.keep(target, rate)
            self._kernels.gemm(target.weight, left.T, right, -rate * scale, keep)
        else:
            self._update_by_product(rule, target, rate, left, right, scale=scale)

    def in_place(self, name: str, lr: float) -> InPlace | None:
        """Return where a gradient can be added instead of `product`, if the rule is that."""
        rule, target, rate = self._target(name, lr)
        if not rule.is_fused:
            return None
        return InPlace(target.weight, factor=-rate, keep=rule.keep(target, rate))

    def subset(self, name: str, ids: Array, grad: Array, lr: float) -> None:
        """Apply the gradient of ``parameter[ids]``; other rows and their moments do not change."""
        rule, target, rate = self._subset_target(name, lr)
        gradient = RowGradient(grad.reshape(int(ids.shape[0]), -1), ids)
        rule.update(target, gradient, rate, self._step)

    def subset_product(self, name: str, ids: Array, left: Array, right: Array, lr: float) -> None:
        """Apply the gradient ``left.T @ right`` of ``parameter[ids]``."""
        self._update_by_product(*self._subset_target(name, lr), left, right, ids)

    def subset_sums(self, name: str, sums: RowSums, x: Array, lr: float) -> None:
        """Apply the gradient of ``parameter[sums.ids]``, sums of rows of ``x``."""
        self._update_by_sums(*self._subset_target(name, lr), sums, x)

    def sparse_product(
        self, name: str, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> None:
        """Apply ``x[rows].T @ delta``, a segment's part; zero for features that are not in use."""
        if self._is_fused(name):
            _, target, rate = self._target(name, lr)
            self._kernels.sparse_update(target.weight, x, rows, delta, -rate, drop)
        else:
            self._sparse_gradient(name).add(x, rows, delta, drop)

    def end_step(self, lr: float) -> None:
        """Apply the gradients that were collected."""
        whole = {name: RowGradient(as_rows(array)) for name, array in self._collected.items()}
        for name, sparse in self._sparse.items():
            sparse.group()
            sums = sparse.sums()
            if self._needs_all(name):
                whole[name] = RowGradient(
                    sparse.materialize(), sums.ids, skip_zero_rows=True,
                    device_count=sums.device_count,
                )  # fmt: skip
            else:
                target = self._target(name, lr)
                self._update_by_sums(*target, sums, sparse.deltas, skips=True)
        self._apply(whole, lr)
        self._clear_step()

    def apply(self, gradient: Mapping[str, Array], lr: float) -> None:
        """Take all of a step's gradient at once, after ``begin_step``.

        Parameters
        ----------
        gradient
            An array of each parameter's shape by its name, as `GradientBuffer.views` has them.
            Rows of the first layer that are zero throughout are skipped.
        lr
            Learning rate.

        Examples
        --------
        >>> from daskxml.kernels import get_kernels
        >>> kernels = get_kernels("cpu", 1)
        >>> bias = kernels.zeros(2)
        >>> config = OptimizerConfig(clip_norm=5.0)
        >>> optimizer = Optimizer(config, kernels, {"b": bias}, lambda flat: {"b": flat}, 2)
        >>> optimizer.begin_step()
        >>> optimizer.apply({"b": kernels.to_device(bias + [6.0, 8.0])}, lr=1.0)
        >>> bias
        array([-3., -4.], dtype=float32)
        """
        whole = {
            name: RowGradient(as_rows(array), skip_zero_rows=name == FIRST_LAYER)
            for name, array in gradient.items()
        }
        self._apply(whole, lr)

    # -------------------------------------------------------------------- state

    def state(self) -> dict[str, Array]:
        """Return the state that a checkpoint must hold to resume with the same bits.

        Returns
        -------
        dict
            Moments by name, flat ``(size,)`` float32, and ``steps`` ``(1,)`` int64; empty if
            the rules have no moments. The arrays are the optimizer's own, the last one on the host:
            write into them to restore a state.
        """
        return {**self._moments, "steps": self._steps} if self._moments else {}

    def reset(self) -> None:
        """Set all moments and the step count to zero."""
        self._steps[:] = 0
        for array in self._moments.values():
            self._kernels.fill(array, 0)
        self._clear_step()

    @property
    def nbytes(self) -> int:
        """Bytes of moments and buffers."""
        arrays = (*self._moments.values(), *self._collected.values())
        buffers = self._scratch.nbytes + sum(grad.nbytes for grad in self._sparse.values())
        buffers += sum(rule.nbytes for rule in {*self._rules.values()})
        return buffers + sum(int(array.nbytes) for array in arrays)

    # ------------------------------------------------------------------ inside

    def _clear_step(self) -> None:
        for array in self._collected.values():
            self._kernels.fill(array, 0.0)
        for gradient in self._sparse.values():
            gradient.clear()

    def _is_fused(self, name: str) -> bool:
        """Whether gradients are applied to this parameter without being materialized.

        Those of the first layer are not, with weight decay, which each row has once a step.
        """
        decays = name == FIRST_LAYER and self._config.weight_decay > 0.0
        return self._rules[name].is_fused and not (self._needs_all(name) or decays)

    def _sparse_gradient(self, name: str) -> SparseGradient:
        if name not in self._sparse:
            self._sparse[name] = SparseGradient(self._kernels, *self._parameters[name].shape)
        return self._sparse[name]

    def _needs_all(self, name: str) -> bool:
        """Whether no part of this gradient can be applied before all of it is known."""
        return self._config.clip_norm > 0.0 or self._rules[name].is_layerwise

    def _slice(self, name: str, rows: slice = slice(None)) -> ParameterSlice:
        """Some rows; all of them are made once, as views of CuPy's arrays take a while."""
        if (rows.start or 0, rows.stop) not in ((0, None), (0, self._parameters[name].shape[0])):
            return self._cut(name, rows)
        if name not in self._wholes:
            self._wholes[name] = self._cut(name, slice(None))
        return self._wholes[name]

    def _cut(self, name: str, rows: slice) -> ParameterSlice:
        weight = self._parameters[name]
        names = self._rules[name].moments
        moments = tuple(as_rows(self._moment_views[moment][name][rows]) for moment in names)
        return ParameterSlice(as_rows(weight[rows]), moments, weight.ndim > 1)

    def _target(self, name: str, lr: float, rows: slice = slice(None)) -> Target:
        """What a gradient of ``parameter[rows]`` changes now: these rows, or what collects it."""
        if name in self._collected:
            return self._sum, ParameterSlice(as_rows(self._collected[name][rows]), (), False), -1.0
        return self._rules[name], self._slice(name, rows), lr * self._config.lr_factor(name)

    def _subset_target(self, name: str, lr: float) -> Target:
        """The whole parameter, some of whose rows (of a vector: elements) will change."""
        if self._needs_all(name):
            raise ConfigError(
                f"optimizer: of {name} some rows change, others wait: it takes neither clip_norm "
                "nor lamb"
            )
        rule, target, rate = self._target(name, lr)
        return rule, target.as_column(), rate

    def _update_by_product(
        self, rule: Rule, whole: ParameterSlice, rate: float, left: Array, right: Array,
        ids: Array | None = None, scale: float = 1.0,
    ) -> None:  # fmt: skip
        """Form ``scale * left.T @ right`` a few rows at a time, and apply each while in the cache.

        They are the rows ``ids``, or all in order; ``first`` is the number of the first one.
        """
        rows, width = int(left.shape[1]), int(right.shape[1])
        chunk = max(1, self._kernels.gradient_floats // width)
        with self._scratch.borrow(min(rows, chunk) * width) as memory:
            for start in range(0, rows, chunk):
                span = slice(start, min(start + chunk, rows))
                slope = memory[: (span.stop - start) * width].reshape(-1, width)
                self._kernels.gemm(slope, left[:, span].T, right, scale)
                target = whole.rows(span) if ids is None else whole
                gradient = RowGradient(slope, None if ids is None else ids[span])
                rule.update(target, gradient, rate, self._step)

    def _update_by_sums(
        self, rule: Rule, target: ParameterSlice, rate: float, sums: RowSums, x: Array,
        skips: bool = False,
    ) -> None:  # fmt: skip
        """Form ``sums`` of ``x`` a few rows at a time, in each thread, and apply each likewise."""
        kernels, width = self._kernels, int(x.shape[1])
        chunk = max(1, min(sums.count, kernels.gradient_floats // width))

        def work(thread: int, start: int, stop: int) -> None:
            count = None if sums.device_count is None else (sums.device_count[0], start)
            with self._scratch.borrow(chunk * width) as memory:
                slope = memory[: (stop - start) * width].reshape(-1, width)
                starts = sums.starts[start : stop + 1]
                kernels.gather_rows(slope, starts, sums.rows, sums.values, x, count)
                gradient = RowGradient(slope, sums.ids[start:stop], skips, device_count=count)
                rule.update(target, gradient, rate, self._step)

        kernels.for_label_blocks(sums.count, chunk, work)

    def _apply(self, gradients: Mapping[str, RowGradient], lr: float) -> None:
        scale = self._clip_scale(gradients)
        for name, gradient in gradients.items():
            scaled, rate = replace(gradient, scale=scale), lr * self._config.lr_factor(name)
            self._rules[name].update(self._slice(name), scaled, rate, self._step)

    def _clip_scale(self, gradients: Mapping[str, RowGradient]) -> float:
        """The factor that reduces the norm of the gradient to ``clip_norm`` at most."""
        if not self._config.clip_norm:
            return 1.0
        squared_norm = self._kernels.squared_norm
        norm = sqrt(sum(squared_norm(each.values.reshape(-1)) for each in gradients.values()))
        return self._config.clip_norm / norm if norm > self._config.clip_norm else 1.0


class GradientBuffer(Optimizer):
    """A gradient in one flat array, laid out as the parameters of a model.

    Gradients are added up by steps of SGD at the rate -1, which callers give.

    Parameters
    ----------
    size, views
        Size of the flat array, and a function from such an array to views by parameter name:
        ``Layout.size`` and ``Layout.views``.

    Attributes
    ----------
    flat
        ``(size,)`` float32, zero at first. May be written to: all-reduced over workers.
    views
        Views of it, by name.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> buffer = GradientBuffer(kernels, 4, lambda flat: {"w": flat[:2], "b": flat[2:]})
    >>> buffer.dense("b", kernels.zeros(2) + 1, lr=-1.0)
    >>> buffer.flat
    array([0., 0., 1., 1.], dtype=float32)
    """

    def __init__(self, kernels: Kernels, size: int, views: Views) -> None:
        self.flat = kernels.zeros(size)
        self.views = views(self.flat)
        super().__init__(OptimizerConfig(), kernels, self.views, views, size)

    def clear(self) -> None:
        """Set all of it to zero, with a single fill."""
        self._kernels.fill(self.flat, 0.0)
