"""The GPU's kernels: what they promise beyond their twins, on the host and through the compiler."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Csr, Partition, Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels
from daskxml.kernels.cuda import sparse
from daskxml.kernels.cuda.device import NULL, cuda_source
from daskxml.kernels.cuda.sparse import StagedCsr
from daskxml.kernels.operands import Drop, RowGradient, RuleStep, orientation
from harness.cuda_on_host import (
    AHEAD,
    BACKWARD,
    FORWARD,
    NO_GPU,
    SHUFFLED,
    HostCalls,
    emulated,
    library,
    needs_compiler,
)
from harness.kernel_cases import (
    NAIVE,
    close,
    group_entries,
    modest,
    normal,
    random_csr,
    seeds,
    wide,
)
from harness.naive_sparse import dense_rows

HOST = HostCalls(emulated)
ORDERS = FORWARD, BACKWARD, SHUFFLED, AHEAD


def test_cupy_has_what_the_device_asks_of_it():
    """Names and arguments, where its libraries can be loaded; they need no driver."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    code = (
        "import inspect, cupy\n"
        "from cupy_backends.cuda.api import runtime\n"
        "from cupy_backends.cuda.libs import cublas\n"
        "def asked(function):\n"
        "    told = function.__doc__.partition('(')[2].partition(')')[0]\n"
        "    return [part.split()[-1] for part in told.split(',')]\n"
        "cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_COMPUTE_32F_FAST_TF32\n"
        "cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T, cublas.CUBLAS_GEMM_DEFAULT\n"
        "cublas.create, cublas.destroy, issubclass(cublas.CUBLASError, RuntimeError) or 1 / 0\n"
        "assert asked(cublas.setStream) == 'handle stream'.split(), asked(cublas.setStream)\n"
        "assert asked(cublas.setPointerMode) == 'handle mode'.split()\n"
        "cublas.getVersion, cublas.check_status\n"
        "cupy.cuda.Stream.begin_capture, cupy.cuda.Stream.end_capture, cupy.cuda.Graph.launch\n"
        "assert asked(runtime.memcpyAsync) == 'dst src size kind stream'.split()\n"
        "assert asked(runtime.memsetAsync) == 'ptr value size stream'.split()\n"
        "assert asked(runtime.deviceGetAttribute)[0] == 'attrib'\n"
        "runtime.CUDA_R_32F, runtime.CUDA_R_16F, runtime.CUDA_R_16BF\n"
        "runtime.memGetInfo, runtime.getDevice\n"
        "runtime.memcpyDeviceToDevice, runtime.memcpyHostToDevice\n"
        "runtime.cudaDevAttrL2CacheSize\n"
        "cupy.cuda.Stream.record, cupy.cuda.Stream.wait_event, cupy.cuda.Stream.synchronize\n"
        "assert 'disable_timing' in cupy.cuda.Event.__doc__\n"
        "assert 'stream' in inspect.signature(cupy.asnumpy).parameters\n"
        "cupy.get_default_memory_pool().free_all_blocks, cupy.cuda.get_allocator().__module__\n"
        "assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)\n"
        "assert cupy.ndarray.__weakrefoffset__ > 0\n"
        "cupy.RawModule.compile, cupy.RawModule.get_function\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if "DynamicLibNotFoundError" in done.stderr or "cannot open shared object" in done.stderr:
        pytest.skip("cuBLAS is not installed")
    assert done.returncode == 0, done.stderr


def test_no_float_is_added_by_an_atomic():
    """Such sums would be rounded in another order each time."""
    whole_numbers = ("counts", "sizes", "taken", "word", "&bits", "deferred", "table")
    calls = [line.split("atomic")[1] for line in cuda_source().splitlines() if "atomic" in line]
    for call in [call for call in calls if "(" in call and "are on integers" not in call]:
        assert call.split("(", 1)[1].startswith(whole_numbers), call


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_where_there_is_no_gpu_it_is_said_in_one_line():
    with pytest.raises(ConfigError, match=r'^device "cuda": .*, or give device "cpu"$') as caught:
        get_kernels("cuda", 1)
    assert "\n" not in str(caught.value)


# -- the same bits in whatever order threads and blocks come ------------------------------------


def sparse_case(rng, rows=90, columns=50, chosen=80):
    x = random_csr(rng, rows, columns, 0.4)
    return x, rng.integers(0, rows, chosen)


def update(kernels, rng):
    x, rows = sparse_case(rng)
    weight, drop = normal(rng, 50, 40), Drop(rate=0.2, key=5)
    kernels.sparse_update(weight, x, rows, normal(rng, 80, 40), 0.1, drop)
    return [weight]


def forward(kernels, rng):
    x, rows = sparse_case(rng, columns=700, chosen=9)  # more entries in a row than threads
    out = kernels.empty((9, 150))
    kernels.sparse_forward(out, x, rows, normal(rng, 700, 150), normal(rng, 150))
    return [out]


def softmax(kernels, rng):
    logits, bias = normal(rng, 300, 70), normal(rng, 300)
    peak, total = np.full(70, -np.inf, "f"), np.zeros(70)
    kernels.softmax_sums(logits, bias, peak, total)
    sums, shift = np.empty(300, "f"), np.empty(70, "f")
    kernels.softmax_shift(shift, peak, total, np.abs(normal(rng, 70)))
    kernels.softmax_gradient(logits, bias, shift, sums)
    return [logits, peak, total, sums]


def sigmoid(kernels, rng):
    logits, bias, sums, loss = (
        normal(rng, 300, 70),
        normal(rng, 300),
        np.empty(300, "f"),
        np.ones(70),
    )
    kernels.sigmoid_block(logits, bias, 0.5, sums, loss, np.empty((2, 70), "f"))
    return [logits, sums, loss]


def targets(kernels, rng):
    y, rows = random_csr(rng, 40, 30, 0.4, ones=True), rng.integers(0, 40, 60)
    delta, sums, out = normal(rng, 30, 60), normal(rng, 30), np.zeros(60)
    kernels.target_logits(out, delta, normal(rng, 30), y, rows, 0, 0)
    kernels.subtract_targets_deferred(delta, normal(rng, 60), y, rows, 0, 0)
    kernels.apply_deferred_sums(sums)
    return [delta, sums, out]


def ranks(kernels, rng):
    logits = np.round(normal(rng, 300, 40))
    scores, ids = np.full((40, 7), -np.inf, "f"), np.full((40, 7), -1, np.int32)
    kernels.top_k_block(logits, np.zeros(300, "f"), 0, scores, ids)
    return [scores, ids]


def sums(kernels, rng):
    x, out = normal(rng, 300, 40), np.empty(40, "f")
    kernels.column_sums(out, x)
    flat = x.reshape(-1)
    numbers = kernels.squared_norm(flat), *kernels.dots(flat, -flat)
    return [out, np.array(numbers), np.array(kernels.largest(flat))]


def lamb(kernels, rng):
    weight, first, second = normal(rng, 90, 40), normal(rng, 90, 40), normal(rng, 90, 40) ** 2
    step = RuleStep(lr=0.1, beta1=0.9, beta2=0.99, epsilon=1e-6, weight_decay=0.2, step=3)
    norms, values = kernels.empty((2, 90), "float64"), normal(rng, 90, 40)
    values[::3] = 0.0
    kernels.lamb_moments(
        norms, weight, first, second, RowGradient(values, skip_zero_rows=True), step
    )
    return [norms, first, second]


def scans(kernels, rng):
    x, drop = random_csr(rng, 20, 60, 0.7), Drop(rate=0.5, key=1)
    out = [np.zeros(x.nonzeros, kind) for kind in ("i4", "i4", "f4")]
    count = kernels.feature_entries(tuple(out), x, np.arange(20), 0, drop)
    assert count == x.nonzeros
    return out


CASES = scans, update, forward, softmax, sigmoid, targets, ranks, sums, lamb


@needs_compiler
@pytest.mark.parametrize(
    "case",
    [pytest.param(scans, marks=pytest.mark.slow), *CASES[1:]],
    ids=lambda case: case.__name__,
)
def test_the_same_bits_in_any_order_of_threads(case, monkeypatch):
    monkeypatch.setattr(sparse, "_ONE_BLOCK", 256)  # less than there are: scanned in chunks
    results = []
    for order in ORDERS:
        arrays = case(HostCalls(lambda order=order: emulated(order)), np.random.default_rng(3))
        results.append([array.tobytes() for array in arrays])
    assert results[0] == results[1] == results[2] == results[3]


# -- rows of a captured step --------------------------------------------------------------------


@needs_compiler
@settings(modest, max_examples=15)
@given(seeds, st.integers(0, 40), st.sampled_from([0.0, 0.4]), st.booleans())
def test_staged_rows_are_the_rows_of_their_partitions(seed, free, rate, has_values):
    """In any room: beyond the entries there are none, for the update of the weights as well."""
    rng, units = np.random.default_rng(seed), 5
    parts = [random_csr(rng, 6, 30, density) for density in (0.3, 0.05)]
    if not has_values:
        parts = [replace(part, data=None) for part in parts]
    chosen = [rng.permutation(6)[:count] for count in (4, 3)]
    begins = np.concatenate([x.indptr[rows] for x, rows in zip(parts, chosen, strict=True)])
    sizes = [np.diff(x.indptr)[rows] for x, rows in zip(parts, chosen, strict=True)]
    indptr = np.append(0, np.cumsum(np.concatenate(sizes)))
    drop, room = Drop(rate=rate, key=seed), int(indptr[-1]) + free
    delta, weight = normal(rng, 7, units), normal(rng, 30, units)
    found = []
    for kernels in (emulated(), NAIVE):
        arrays = [kernels.empty(room, kind) for kind in ("int32", "float32", "int32")]
        offsets = kernels.to_device(indptr)
        staged = StagedCsr(offsets, arrays[0], arrays[1], 30, arrays[2])
        pieces = [(kernels.to_device(x), len(rows)) for x, rows in zip(parts, chosen, strict=True)]
        kernels.stage_rows(staged, kernels.to_device(begins), pieces, 7, drop)
        own = [kernels.to_host(array)[: indptr[-1]] for array in arrays]
        rest = kernels.to_host(arrays[0])[indptr[-1] :]
        changed = kernels.to_device(weight.copy())
        numbers = kernels.to_device(np.arange(7))
        kernels.sparse_update(changed, staged, numbers, kernels.to_device(delta), 0.5)
        found.append((*own, rest, kernels.to_host(changed)))
    for mine, naive in zip(*found, strict=True):
        np.testing.assert_allclose(mine, naive, rtol=1e-5, atol=1e-5)


# -- sizes at which another way is taken --------------------------------------------------------


@needs_compiler
@settings(modest, max_examples=10)
@given(seeds, st.sampled_from([20, 33, 150]), st.sampled_from([1, 3, 40]))
def test_features_of_many_rows_are_added_in_order(seed, rows, units):
    """More rows than a warp has lanes; entry by entry as the CPU adds them."""
    rng = np.random.default_rng(seed)
    x = random_csr(rng, rows, 5, 0.8)
    chosen, delta = rng.permutation(rows), normal(rng, rows, units)
    entries = [np.empty(x.nonzeros, kind) for kind in ("i4", "i4", "f4")]
    assert HOST.feature_entries(tuple(entries), x, chosen, 0, Drop()) == x.nonzeros
    found, wanted = (np.zeros(x.nonzeros + 1, "i8") for _ in range(2))
    outs = [np.zeros(x.nonzeros + 1, kind) for kind in ("i4", "i4", "f4") for _ in range(2)]
    counts = np.zeros(5, np.int32)
    fast = group_entries(HOST, outs[0], found, outs[2], outs[4], tuple(entries), counts)
    slow = group_entries(NAIVE, outs[1], wanted, outs[3], outs[5], tuple(entries), counts)
    assert fast == slow
    np.testing.assert_array_equal(found[: fast + 1], wanted[: fast + 1])
    np.testing.assert_array_equal(outs[0][:fast], outs[1][:fast])
    for mine, naive in ((outs[2], outs[3]), (outs[4], outs[5])):
        np.testing.assert_array_equal(mine[: x.nonzeros], naive[: x.nonzeros])
    weight = np.zeros((5, units), np.float32)
    HOST.sparse_update(weight, x, chosen, delta, 1.0)
    close(weight, dense_rows(x, chosen).T @ wide(delta), 1e-4)


@needs_compiler
@pytest.mark.parametrize("size", [1, 31, 32, 1025, 3000])
def test_sums_before_over_more_chunks_than_a_block_has_threads(size):
    device = emulated(BACKWARD)._device
    numbers = np.random.default_rng(2).integers(0, 9, size + 1).astype(np.int32)
    x, chunks = device.upload(numbers), -(-size // 32)
    totals = device.empty(chunks + 1, "int32")
    device.launch("scan_chunks", (chunks,), (32,), x, totals, np.int64(size))
    device.launch("scan_totals", (1,), (32,), totals, np.int32(chunks))
    device.launch("scan_add", (2,), (32,), x, totals, np.int32(32), np.int64(size))
    np.testing.assert_array_equal(device.download(x), np.append(0, np.cumsum(numbers[:size])))


@needs_compiler
@pytest.mark.parametrize("size", [1, 33, 1100, 8192, 8193])
def test_sums_before_by_one_block_or_by_many(size):
    kernels = emulated(SHUFFLED)
    device = kernels._device
    numbers = np.random.default_rng(2).integers(0, 9, size + 1).astype(np.int32)
    x = device.upload(numbers)
    kernels._scan(device.empty, x, size)
    assert ("scan_chunks" in device.queued) == (size > 8192)
    np.testing.assert_array_equal(device.download(x), np.append(0, np.cumsum(numbers[:size])))


@needs_compiler
def test_a_batch_of_more_rows_than_a_window_of_bits():
    rows = 8300
    x = Csr(np.arange(rows + 1), np.zeros(rows, np.int32), np.ones(rows, np.float32), 1)
    entries = np.zeros(rows, "i4"), np.arange(rows, dtype="i4"), np.arange(rows, dtype="f4")
    outs = (np.empty(rows, "i4"), np.empty(rows + 1, "i8"), np.empty(rows, "i4"),
            np.empty(rows, "f4"))  # fmt: skip
    kernels = HostCalls(lambda: emulated(SHUFFLED))
    assert group_entries(kernels, *outs, entries, np.zeros(x.columns, "i4")) == 1
    np.testing.assert_array_equal(outs[2], np.arange(rows))
    np.testing.assert_array_equal(outs[3], np.arange(rows))


@needs_compiler
@modest
@given(seeds, st.sampled_from([64, 65, 200]), st.integers(1, 40))
def test_labels_in_several_chunks(seed, labels, rows):
    rng = np.random.default_rng(seed)
    logits, bias = normal(rng, labels, rows, spread=5), normal(rng, labels)
    whole = wide(logits) + bias[:, None]
    peak, total = np.full(rows, -np.inf, "f"), np.zeros(rows)
    k = 9
    scores, ids = np.full((rows, k), -np.inf, "f"), np.full((rows, k), -1, np.int32)
    HOST.top_k_block(logits, bias, 0, scores, ids)
    order = np.argsort(-np.float32(whole), axis=0, kind="stable")[:k].T
    assert (ids == order).mean() > 0.99  # the bias was added in float32
    HOST.softmax_sums(logits, bias, peak, total)
    close(peak, whole.max(axis=0))
    close(total, np.exp(whole - whole.max(axis=0)).sum(axis=0), 1e-5)


@needs_compiler
@pytest.mark.parametrize("rows", [0, 1, 64, 65, 4097])
def test_column_sums_of_any_height(rows):
    x, out = normal(np.random.default_rng(1), rows, 3), np.full(3, np.nan, "f")
    HOST.column_sums(out, x)
    close(out, wide(x).sum(axis=0), 1e-4)


@needs_compiler
@modest
@given(seeds, *(st.integers(0, 5) for _ in range(3)), st.booleans(), st.booleans())
def test_products_as_blas_is_asked_for_them(seed, m, k, n, flip_a, flip_b):
    rng = np.random.default_rng(seed)
    a = normal(rng, k, m).T if flip_a else normal(rng, m, k)
    b = normal(rng, n, k).T if flip_b else normal(rng, k, n)
    for matrix in (a, b):
        flips, stride = orientation(matrix)
        assert stride >= max(1, matrix.shape[0] if flips else matrix.shape[1])
    out = np.empty((m, n), np.float32)
    HOST.gemm(out, a, b)
    close(out, wide(a) @ wide(b), 1e-4)


# -- what the host is told ----------------------------------------------------------------------


@needs_compiler
def test_a_batch_that_came_from_the_host_is_counted_without_synchronizing():
    kernels = emulated()
    x = random_csr(np.random.default_rng(0), 9, 7)
    segment = Segment(Partition(x, x), np.array([3, 3, 8]))
    there = kernels.to_device(segment)
    assert kernels.nonzeros(there.partition.features, there.rows) == NAIVE.nonzeros(x, segment.rows)
    assert kernels._device.downloads == 0
    assert kernels.nonzeros(there.partition.features, there.rows[1:]) > 0
    assert kernels._device.downloads == 1  # a slice is another array: it asks the device
    assert kernels.to_device(there) is there
    back = kernels.to_host(there)
    np.testing.assert_array_equal(back.rows, segment.rows)
    del there
    assert not kernels._host_copies


@needs_compiler
def test_a_launch_with_a_wrong_argument_is_noticed():
    device = emulated()._device
    x, size = device.upload(np.ones(3, np.float32)), np.int64(3)
    with pytest.raises(AssertionError, match="scale: 3 of 4 arguments"):
        device.launch("scale", (1,), (32,), x, x, size)
    with pytest.raises(AssertionError, match="float64, not f4"):
        device.launch("scale", (1,), (32,), x, x, np.float64(1), size)
    with pytest.raises(AssertionError, match="an array of the host"):
        device.launch("scale", (1,), (32,), np.ones(3, np.float32), x, np.float32(1), size)
    with pytest.raises(AssertionError, match="wrote past the end"):
        device.launch("scale", (1,), (32,), x, x, np.float32(2), np.int64(4))
    assert NULL == 0
    assert library() is library()
