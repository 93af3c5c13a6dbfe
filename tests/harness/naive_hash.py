"""The counter-based hash of all kernels, slow and obvious."""

_MASK = (1 << 64) - 1


def hash64(key: int, index: int) -> int:
    """Number ``index`` of SplitMix64's stream ``key``.

    Examples
    --------
    >>> hex(hash64(0, 0))
    '0xe220a8397b1dcdaf'
    """
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
