"""How vectors travel between ranks: as they are, as bfloat16, or as scaled float16.

bfloat16 has float32's range and 8 bits of precision: nothing overflows, and what is rounded once is
not changed by rounding it again, so a piece may be passed on from rank to rank.

A float16 message starts with the exponent of its scale, a power of two that brings its largest
magnitude to between 2**14 and 2**15, so nothing overflows and the scaling itself is exact (the
dynamic scaling of Maleki et al. 2021, section 4.4.1, whose scale here follows every message
instead of a schedule). What is smaller than 2**-39 of the largest is lost. A message that holds a
NaN or an infinity is not scaled, so that it arrives as one.

Messages wait to be sent where nothing is needed any more: so they take no memory, and nobody has
to wait until they have left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from daskxml.combine.kernels import CombineKernels
from daskxml.combine.messages import Borrow, Program, Receive, Send
from daskxml.types import Array

_GREATEST = 110  # exponent: the scale and its inverse are normal float32


class Wire(Protocol):
    """A way for arrays to travel; programs ``yield from`` the last four of its methods."""

    def load(self, piece: Array) -> Array:
        """Return what is to be sent for a piece, whose contents are lost."""

    def freeze(self, piece: Array) -> Array:
        """Return what is to be sent for a piece, and make it what arrives, bit for bit."""

    def send(self, to: Sequence[int], piece: Array) -> Program[None]:
        """Let a piece travel; its contents are lost."""

    def publish(self, to: Sequence[int], piece: Array, spare: Array) -> Program[None]:
        """Let a piece travel, and make it equal, bit for bit, to what arrives.

        ``spare``, of the same size, is overwritten, and may be used again after a `Flush`.
        """

    def receive(self, source: int, into: Array) -> Program[None]:
        """Wait for a piece."""

    def borrow(self, source: int, into: Array) -> Program[Array]:
        """Wait for a piece; return it as `Borrow` says."""


class PlainWire:
    """Pieces travel as they are."""

    def load(self, piece: Array) -> Array:
        """Return the piece."""
        return piece

    def freeze(self, piece: Array) -> Array:
        """Return the piece."""
        return piece

    def send(self, to: Sequence[int], piece: Array) -> Program[None]:
        """Let a piece travel."""
        for rank in to:
            yield Send(rank, piece)

    def publish(self, to: Sequence[int], piece: Array, spare: Array) -> Program[None]:
        """Let a piece travel."""
        yield from self.send(to, piece)

    def receive(self, source: int, into: Array) -> Program[None]:
        """Wait for a piece."""
        yield Receive(source, into)

    def borrow(self, source: int, into: Array) -> Program[Array]:
        """Wait for a piece, where it lies."""
        arrived = yield Borrow(source, into)
        return into if arrived is None else arrived


class NarrowWire:
    """Pieces travel in half of their bytes.

    Parameters
    ----------
    kernels
        The arithmetic.
    piece_size
        Elements of a piece, at most.
    form
        How a piece becomes a message.
    """

    def __init__(self, kernels: CombineKernels, piece_size: int, form: Form) -> None:
        self._kernels, self._form = kernels, form
        self._packed, self._arrived = kernels.empty((2, piece_size + form.header), form.dtype)

    def load(self, piece: Array) -> Array:
        """Pack a piece where it lies: half of its bytes become the message."""
        return self._put(self._pack(piece), piece)

    def freeze(self, piece: Array, spare: Array | None = None) -> Array:
        """Pack a piece into ``spare``, and round it as it arrives."""
        message = self._pack(piece)
        self._form.unpack(piece, message, self._kernels)
        return self._put(message, self._kernels.empty(piece.shape[0]) if spare is None else spare)

    def send(self, to: Sequence[int], piece: Array) -> Program[None]:
        """Let a piece travel, from where it lies."""
        waiting = self.load(piece)
        for rank in to:
            yield Send(rank, waiting)

    def publish(self, to: Sequence[int], piece: Array, spare: Array) -> Program[None]:
        """Let a piece travel, and round it as it arrives."""
        waiting = self.freeze(piece, spare)
        for rank in to:
            yield Send(rank, waiting)

    def receive(self, source: int, into: Array) -> Program[None]:
        """Wait for a piece."""
        message = self._arrived[: into.shape[0] + self._form.header]
        yield Receive(source, message)
        self._form.unpack(into, message, self._kernels)

    def borrow(self, source: int, into: Array) -> Program[Array]:
        """Wait for a piece, and unpack it."""
        yield from self.receive(source, into)
        return into

    def _pack(self, piece: Array) -> Array:
        message = self._packed[: piece.shape[0] + self._form.header]
        self._form.pack(message, piece, self._kernels)
        return message

    def _put(self, message: Array, place: Array) -> Array:
        waiting = place.view(self._form.dtype)[: message.shape[0]]
        self._kernels.copy(waiting, message)
        return waiting


class Form(Protocol):
    """How a piece ``(n,)`` float32 becomes a message ``(n + header,)`` of another dtype."""

    header: int
    dtype: str

    def pack(self, message: Array, piece: Array, kernels: CombineKernels) -> None:
        """Write a piece into a message."""

    def unpack(self, piece: Array, message: Array, kernels: CombineKernels) -> None:
        """Write what a message says into a piece."""


class Float16:
    """The exponent of the message's scale, and scaled float16."""

    header, dtype = 1, "float16"

    def pack(self, message: Array, piece: Array, kernels: CombineKernels) -> None:
        """Scale and round."""
        exponent = scale_exponent(kernels.largest(piece))
        kernels.fill(message[: self.header], exponent)
        kernels.convert(message[self.header :], piece, math.ldexp(1.0, exponent))

    def unpack(self, piece: Array, message: Array, kernels: CombineKernels) -> None:
        """Undo the scaling."""
        kernels.convert(piece, message[self.header :], math.ldexp(1.0, -int(message[0])))


class BFloat16:
    """The upper halves of float32, rounded to the nearest, ties to even; as uint16."""

    header, dtype = 0, "uint16"

    def pack(self, message: Array, piece: Array, kernels: CombineKernels) -> None:
        """Round."""
        kernels.convert(message, piece, 1.0)

    def unpack(self, piece: Array, message: Array, kernels: CombineKernels) -> None:
        """Lengthen."""
        kernels.convert(piece, message, 1.0)


FORMS: dict[str, Form] = {"float16": Float16(), "bfloat16": BFloat16()}


def make_wire(transfer: str, kernels: CombineKernels, piece_size: int) -> Wire:
    """Return the wire for ``float32``, ``float16`` or ``bfloat16``."""
    form = FORMS.get(transfer)
    return PlainWire() if form is None else NarrowWire(kernels, piece_size, form)


def scale_exponent(largest: float) -> int:
    """Return the power of two that brings a magnitude to between 2**14 and 2**15, if any does.

    Examples
    --------
    >>> scale_exponent(1.0), scale_exponent(3.0e38), scale_exponent(0.0)
    (14, -113, 0)
    """
    if not math.isfinite(largest) or largest == 0.0:
        return 0
    return min(15 - math.frexp(largest)[1], _GREATEST)
