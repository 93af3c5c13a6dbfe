"""Kernels by name."""

import pytest

from daskxml.errors import ConfigError
from daskxml.ops import get_kernels


def test_unknown_or_absent_devices_are_refused():
    with pytest.raises(ConfigError, match="'tpu' is unknown: use one of cpu, cuda"):
        get_kernels("tpu", 1)
    with pytest.raises(ConfigError, match="threads = 0"):
        get_kernels("cpu", 0)
