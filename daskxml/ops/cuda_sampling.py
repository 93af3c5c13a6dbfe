# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""What a GPU does not do: sampled labels, and steps with one row. Run files are told so."""

from __future__ import annotations

from typing import NoReturn

from daskxml.errors import ConfigError
from daskxml.ops.row_protocol import RowNet
from daskxml.ops.row_sets_protocol import Lookup, RowSets
from daskxml.types import Array, Csr


class CudaSampling:
    """Has the methods of :class:`daskxml.ops.sampling_protocol.SamplingKernels`; all refuse."""

    def sign_keys(self, out: Array, projected: Array, extra: Array, weights: Array) -> None:
        _refuse()

    def winner_keys(self, out: Array, x: Array, bins: Array, skips_zeros: bool) -> None:
        _refuse()

    def fill_buckets(self, starts: Array, members: Array, keys: Array) -> None:
        _refuse()

    def count_votes(self, votes: Array, keys: Array, starts: Array, members: Array) -> None:
        _refuse()

    def add_targets(self, ids: Array, place: Array, count: int, y: Csr, rows: Array) -> int:
        _refuse()

    def add_popular(
        self, ids: Array, place: Array, count: int, votes: Array, most: int, key: int
    ) -> int:
        _refuse()

    def add_random(self, ids: Array, place: Array, count: int, most: int, key: int) -> int:
        _refuse()

    def place_targets(
        self, indptr: Array, indices: Array, place: Array, y: Csr, rows: Array
    ) -> None:
        _refuse()

    def clear_places(self, place: Array, ids: Array) -> None:
        _refuse()

    def take_rows(self, out: Array, x: Array, ids: Array) -> None:
        _refuse()


class CudaRowSets:
    """Has the methods of :class:`daskxml.ops.row_sets_protocol.RowSetKernels`; all refuse."""

    def size_sets(self, starts: Array, y: Csr, rows: Array, active: int) -> None:
        _refuse()

    def choose_sets(
        self, sets: RowSets, y: Csr, rows: Array, first_row: int, found: Lookup, random: float,
        key: int, marks: Array,
    ) -> None:  # fmt: skip
        _refuse()

    def softmax_sets(
        self, slopes: Array, gradient: Array, loss: Array, sets: RowSets, hidden: Array,
        weight: Array, bias: Array, weighted: bool,
    ) -> None:  # fmt: skip
        _refuse()

    def sigmoid_sets(
        self, slopes: Array, gradient: Array, loss: Array, sets: RowSets, hidden: Array,
        weight: Array, bias: Array, weighted: bool,
    ) -> None:  # fmt: skip
        _refuse()


class CudaRow:
    """Implements :class:`daskxml.ops.row_protocol.RowKernels` by saying that it is not for GPUs."""

    has_row_step = False

    def row_step(self, net: RowNet, x: Csr, y: Csr, row: int, lr: float, output_lr: float) -> float:
        raise NotImplementedError("a GPU steps with many rows: has_row_step is False")


def _refuse() -> NoReturn:
    raise ConfigError('sampled labels need a CPU: give device "cpu", or leave sampling off')
