"""The first compilation of a context is told, and what is not compiled is not."""

from numba import njit

from daskxml.kernels.compilation import telling_of_compilation


def test_only_the_first_compilation_of_the_context_is_told():
    told = []

    @njit
    def double(x):
        return x + x

    with telling_of_compilation(lambda: told.append("a")):
        assert told == []
        assert double(2) == 4
        assert double(2.5) == 5.0
    assert told == ["a"]
    with telling_of_compilation(lambda: told.append("b")):
        assert double(3) == 6
    double("c")  # outside
    assert told == ["a"]
