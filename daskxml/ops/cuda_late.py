"""Sums that stay on the device until somebody asks for one: then all of them come in one copy."""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.ops.cuda_device import Device
from daskxml.types import Array

_SLOTS = 1024  # so many sums, and the host waits for the device


@dataclass(slots=True)
class Late:
    """A sum that the device knows; ``float`` waits for it.

    Attributes
    ----------
    place
        ``(1,)`` float64 on the device, where kernels add to it; 0 at first.
    """

    sums: LateSums
    place: Array
    value: float | None = None

    def __float__(self) -> float:
        """The sum; waits for the work that was queued before."""
        if self.value is None:
            self.sums.read()
        assert self.value is not None
        return self.value


class LateSums:
    """Places for sums, in one array.

    Examples
    --------
    `daskxml.ops.cuda_flat.CudaFlat.late_sum` has one::

        late = sums.new()
        device.launch("add_sum", (1,), (32,), late.place, x, np.float64(1), np.int64(x.size))
        loss = float(late)
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._places: Array = None
        self._open: list[Late] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the array, allocated or not yet."""
        return 8 * _SLOTS

    def reserve(self) -> None:
        """Allocate the array."""
        if self._places is None:
            self._places = self._device.empty(_SLOTS, "float64")

    def new(self) -> Late:
        """A sum of nothing, to be added to."""
        if len(self._open) == _SLOTS:
            self.read()
        self.reserve()
        if not self._open:
            self._device.clear(self._places)
        place = len(self._open)
        self._open.append(Late(self, self._places[place : place + 1]))
        return self._open[-1]

    def read(self) -> None:
        """Wait for all that are open, and tell each its value."""
        values = self._device.download(self._places[: len(self._open)])
        for late, value in zip(self._open, values.tolist(), strict=True):
            late.value = value
        self._open.clear()
