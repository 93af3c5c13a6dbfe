"""Kernels by name: each implements every contract; arrays, threads and their end."""

import inspect
import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba import njit

from daskxml.core.arrays import Partition, Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels, get_kernels
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.kernels.cuda.kernels import CudaKernels
from daskxml.kernels.registry import telling_of_compilation
from daskxml.models.network.samplers import new_sampler
from daskxml.models.network.sampling import SamplingConfig
from harness import naive_row_step, naive_sampling
from harness.kernel_cases import ONE, TWO, random_csr
from harness.naive_kernels import NaiveKernels

CONTRACT = [name for name, f in vars(Kernels).items() if callable(f) and name[0] != "_"]


def parameters(kernels, name):
    """Return names and defaults, with `self` for static methods too."""
    found = list(inspect.signature(getattr(kernels, name)).parameters.values())
    pairs = [(parameter.name, parameter.default) for parameter in found]
    is_static = isinstance(inspect.getattr_static(kernels, name), staticmethod)
    return [("self", inspect.Parameter.empty)] * is_static + pairs


@pytest.mark.parametrize("kernels", [CpuKernels, CudaKernels, NaiveKernels])
def test_the_contract_is_implemented_with_the_same_signatures(kernels):
    others = [n for n in CONTRACT if parameters(kernels, n) != parameters(Kernels, n)]
    assert others == []


@pytest.mark.parametrize("kernels", [CpuKernels, CudaKernels])
def test_what_one_device_has_beside_the_contract_has_a_naive_twin(kernels):
    found = {n for n, f in inspect.getmembers(kernels, callable) if n[0] != "_"}
    own = sorted(found - {*CONTRACT})
    assert own
    for name in own:
        assert parameters(NaiveKernels, name) == parameters(kernels, name), name


def test_every_kernel_is_tested_on_every_device():
    """So `make test-cuda` compares all of them with their twins, where there is a GPU."""
    memory = {
        "empty", "zeros", "to_device", "to_host", "to_device_async", "await_uploads", "close",
        "reserve", "release", "free_bytes", "block_labels", "for_label_blocks", "gradient_floats",
        "has_fused_softmax", "scratch_bytes", "time_range",
    }  # fmt: skip
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    called = "\n".join(text for text in texts if "EVERY" in text)
    assert [n for n in CONTRACT if n not in memory and not re.search(rf"\b{n}\(", called)] == []


@pytest.mark.parametrize("name", ["sampling", "row_sampling", "row_step"])
def test_functions_that_only_a_cpu_has_have_naive_twins_with_the_same_signatures(name):
    fast = import_module(f"daskxml.kernels.cpu.{name}")
    naive = naive_row_step if name == "row_step" else naive_sampling
    found = {n: f for n, f in vars(fast).items() if inspect.isfunction(f) and n[0] != "_"}
    own = {n: f for n, f in found.items() if f.__module__ == fast.__name__}
    assert own
    for twin, function in own.items():
        have = inspect.signature(getattr(naive, twin)).parameters
        assert list(have) == list(inspect.signature(function).parameters), twin


def test_a_gpu_samples_no_labels():
    kernels = SimpleNamespace(name="cuda")
    with pytest.raises(ConfigError, match="sampled labels need a CPU"):
        new_sampler(SamplingConfig(method="random"), kernels, 9, None)


def test_unknown_or_absent_devices_are_refused():
    with pytest.raises(ConfigError, match="'tpu' is unknown: use one of cpu, cuda"):
        get_kernels("tpu", 1)
    with pytest.raises(ConfigError, match="threads = 0"):
        get_kernels("cpu", 0)


def test_arrays_are_aligned_and_moving_them_is_free():
    assert ONE.empty((3, 5)).ctypes.data % 64 == 0
    assert ONE.zeros(7, "int32").dtype == np.int32
    x = random_csr(np.random.default_rng(0), 3, 4)
    segment = Segment(Partition(x, x), np.arange(3))
    assert ONE.to_device(segment) is segment
    assert ONE.to_host(segment) is segment
    strided = Segment(segment.partition, np.arange(6)[::2])
    moved = ONE.to_device(strided)
    assert moved.partition is segment.partition
    assert moved.rows.flags.c_contiguous


def test_an_error_in_any_thread_is_raised():
    def fail(thread, start, stop):
        if thread == 1:
            raise RuntimeError("thread 1")

    with pytest.raises(RuntimeError, match="thread 1"):
        TWO.for_label_blocks(1000, 100, fail)


def test_blocks_cover_the_labels_once_in_order():
    calls = []
    used = TWO.for_label_blocks(1000, 64, lambda *where: calls.append(where))
    assert used == 2
    ranges = [(start, stop) for _, start, stop in sorted(calls)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 1000
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


def test_close_ends_the_threads():
    kernels = CpuKernels(3)
    kernels.close()
    with pytest.raises(RuntimeError):
        kernels.for_label_blocks(1000, 10, lambda *where: None)


@pytest.mark.slow
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
