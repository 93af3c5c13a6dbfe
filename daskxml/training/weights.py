"""A replica's parameters: one flat float32 vector, and narrow output weights beside it.

Merging, checkpoints and evaluation of norms know the flat vector only. Where steps work on output
weights in bfloat16, whoever asks for the vector gets it with those weights written into it, and may
change it: the next step starts from what is there, rounded to the nearest.
"""

from __future__ import annotations

from daskxml.errors import ConfigError
from daskxml.model.parameters import Layout
from daskxml.ops import Kernels
from daskxml.types import Array

_NARROW = "output.weight"


class Weights:
    """Parameters as merging sees them, and as steps do.

    Parameters
    ----------
    flat
        ``(layout.size,)`` float32 on the device.
    is_narrow
        Whether steps have the output layer's weights in bfloat16.

    Raises
    ------
    ConfigError
        If the vector is of another size.

    Attributes
    ----------
    views
        What steps read and change, by name.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.model.spec import ModelSpec
    >>> from daskxml.ops import get_kernels
    >>> kernels = get_kernels("cpu", 1)
    >>> layout = Layout(ModelSpec(features=1, labels=2, hidden=(1,)))
    >>> weights = Weights(kernels, layout, kernels.zeros(layout.size), is_narrow=True)
    >>> layout.views(weights.flat)["output.weight"][:] = 1.01
    >>> weights.begin(changes=True)
    >>> layout.views(weights.flat)["output.weight"].tolist()
    [[1.0078125], [1.0078125]]
    """

    def __init__(self, kernels: Kernels, layout: Layout, flat: Array, is_narrow: bool) -> None:
        if flat.shape != (layout.size,):
            raise ConfigError(
                f"replica: a vector of {flat.size} numbers: the model has {layout.size}"
            )
        self._kernels, self._flat = kernels, flat
        self.views = layout.views(flat)
        self._wide = self.views[_NARROW].reshape(-1)
        self._narrow: Array = None
        self._is_same = self._is_ahead = False  # the narrow weights, to the wide ones
        if is_narrow:
            self.views[_NARROW] = kernels.empty(self.views[_NARROW].shape, "uint16")
            self._narrow = self.views[_NARROW].reshape(-1)

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters."""
        return int(self._flat.nbytes) + (0 if self._narrow is None else int(self._narrow.nbytes))

    @property
    def flat(self) -> Array:
        """All of them, float32; may be changed until the next step."""
        if self._is_ahead:
            self._kernels.convert(self._wide, self._narrow, 1.0)
        self._is_same = self._is_ahead = False
        return self._flat

    def begin(self, *, changes: bool) -> None:
        """A step follows, or something that only reads."""
        if self._narrow is None:
            return
        if not self._is_same:
            self._kernels.convert(self._narrow, self._wide, 1.0)
            self._is_same = True
        self._is_ahead = self._is_ahead or changes
