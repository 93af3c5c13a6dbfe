"""How vectors are encoded between ranks: as they are, as bfloat16, or as scaled float16.

bfloat16 has float32's range and 8 bits of precision: nothing overflows, and what is rounded once is
not changed by rounding it again, so a piece may be forwarded from rank to rank.

A float16 message starts with the exponent of its scale, a power of two that brings its largest
magnitude to between 2**14 and 2**15, so nothing overflows and the scaling itself is exact (the
dynamic scaling of Maleki et al. 2021, section 4.4.1, whose scale here follows every message
instead of a schedule). What is smaller than 2**-39 of the largest is lost. A message that holds a
NaN or an infinity is not scaled, so that it arrives as one.

Encoded messages are stored in memory whose contents are not needed any more: they take no memory of
their own, and the encoder need not wait until they have been sent.
"""

from __future__ import annotations

import math

from daskxml.collectives.messages import Borrow, Program, Receive
from daskxml.core.arrays import Array
from daskxml.kernels import Kernels

_LARGEST_EXPONENT = 110  # the scale and its inverse are normal float32


class Codec:
    """Sends pieces ``(n,)`` float32 as they are."""

    def encode(self, piece: Array) -> Array:
        """Return the message of a piece, whose contents may be lost."""
        return piece

    def encode_rounding(self, piece: Array, scratch: Array | None = None) -> Array:
        """Return the message of a piece, and make the piece what it decodes to, bit for bit.

        ``scratch``, of the same size, may hold the message: it may be reused after a `Flush`. By
        default it is allocated.
        """
        return piece

    def receive(self, source: int, into: Array) -> Program[None]:
        """Receive a piece."""
        yield Receive(source, into)

    def borrow(self, source: int, into: Array) -> Program[Array]:
        """Receive a piece; return it as `Borrow` does."""
        arrived = yield Borrow(source, into)
        return into if arrived is None else arrived


class HalfCodec(Codec):
    """Sends pieces in half of their bytes.

    Parameters
    ----------
    kernels
        The arithmetic.
    piece_size
        Elements of a piece, at most.
    is_scaled
        True: scaled float16, after one element that holds the scale's exponent. False: bfloat16
        (the upper halves of float32, rounded to the nearest, ties to even), as uint16.
    """

    def __init__(self, kernels: Kernels, piece_size: int, is_scaled: bool) -> None:
        self._kernels, self._is_scaled = kernels, is_scaled
        self._header, self._dtype = (1, "float16") if is_scaled else (0, "uint16")
        self._packed, self._arrived = kernels.empty((2, piece_size + self._header), self._dtype)

    def encode(self, piece: Array) -> Array:
        """Pack a piece into half of its own memory."""
        return self._store(self._pack(piece), piece)

    def encode_rounding(self, piece: Array, scratch: Array | None = None) -> Array:
        """Pack a piece into ``scratch``, and round it."""
        message = self._pack(piece)
        self._unpack(piece, message)
        return self._store(
            message, self._kernels.empty(piece.shape[0]) if scratch is None else scratch
        )

    def receive(self, source: int, into: Array) -> Program[None]:
        """Receive and unpack a piece."""
        message = self._arrived[: into.shape[0] + self._header]
        yield Receive(source, message)
        self._unpack(into, message)

    def borrow(self, source: int, into: Array) -> Program[Array]:
        """Receive and unpack a piece into ``into``."""
        yield from self.receive(source, into)
        return into

    def _pack(self, piece: Array) -> Array:
        message = self._packed[: piece.shape[0] + self._header]
        exponent = 0
        if self._is_scaled:
            exponent = scale_exponent(self._kernels.largest(piece))
            self._kernels.fill(message[:1], exponent)
        self._kernels.convert(message[self._header :], piece, math.ldexp(1.0, exponent))
        return message

    def _unpack(self, piece: Array, message: Array) -> None:
        exponent = int(message[0]) if self._is_scaled else 0
        self._kernels.convert(piece, message[self._header :], math.ldexp(1.0, -exponent))

    def _store(self, message: Array, memory: Array) -> Array:
        stored = memory.view(self._dtype)[: message.shape[0]]
        self._kernels.copy(stored, message)
        return stored


def make_codec(transfer: str, kernels: Kernels, piece_size: int) -> Codec:
    """Return the codec for ``float32``, ``float16`` or ``bfloat16``."""
    if transfer == "float32":
        return Codec()
    return HalfCodec(kernels, piece_size, is_scaled=transfer == "float16")


def scale_exponent(largest: float) -> int:
    """Return the power of two that brings a magnitude to between 2**14 and 2**15, if any does.

    Examples
    --------
    >>> scale_exponent(1.0), scale_exponent(3.0e38), scale_exponent(0.0)
    (14, -113, 0)
    """
    if not math.isfinite(largest) or largest == 0.0:
        return 0
    return min(15 - math.frexp(largest)[1], _LARGEST_EXPONENT)
