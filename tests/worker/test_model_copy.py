"""A copy of the shared model: pulled for every batch, its change added, nothing overwritten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.kernels import get_kernels
from daskxml.worker.shared_model import ModelCopy, SharedModel
from harness.cuda_on_host import emulated, needs_compiler

SIZE = 5
numbers = st.lists(st.integers(-9, 9), min_size=SIZE, max_size=SIZE).map(np.float32)


def make_copy(threads=1):
    model = SharedModel.create(SIZE)
    flat = np.zeros(SIZE, np.float32)
    return model, flat, ModelCopy(get_kernels("cpu", threads), flat, model)


@pytest.mark.parametrize("threads", [1, 2])
@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_every_batch_starts_from_the_model_and_adds_its_change(threads, batches):
    model, flat, copy = make_copy(threads)
    slow = np.zeros(SIZE)
    for before, mine, others in batches:
        model.flat += before
        copy.pull()
        np.testing.assert_array_equal(flat, model.flat)
        flat += mine
        model.flat += others  # while the batch is worked on
        copy.push()
        slow += before.astype(np.float64) + mine + others
    np.testing.assert_array_equal(model.flat, slow)


def test_what_is_not_pushed_is_forgotten():
    model, flat, copy = make_copy()
    copy.pull()
    flat += 7.0  # a batch that failed
    copy.pull()
    copy.push()
    assert not model.flat.any()


class CountingKernels:
    """The GPU's kernels run on the host; counts the floats that each direction moves."""

    def __init__(self):
        self._kernels, self.down, self.up = emulated(), 0, 0

    def __getattr__(self, name):
        return getattr(self._kernels, name)

    def to_host(self, value):
        self.down += value.size
        return self._kernels.to_host(value)

    def to_device(self, value):
        self.up += value.size
        return self._kernels.to_device(value)


@needs_compiler
def test_a_gpu_downloads_its_change_only():
    kernels, model = CountingKernels(), SharedModel.create(SIZE)
    flat = kernels.zeros(SIZE)
    copy = ModelCopy(kernels, flat, model)
    change = np.float32([1, 2, 3, 4, 5])
    for batch in range(3):
        copy.pull()
        assert (kernels.down, kernels.up) == (batch * SIZE, (2 * batch + 1) * SIZE)
        np.testing.assert_array_equal(emulated().to_host(flat), batch * change)
        kernels.copy(flat, kernels.to_device((batch + 1) * change))
        copy.push()
    np.testing.assert_array_equal(model.flat, 3 * change)
