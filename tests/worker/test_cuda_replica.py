"""Whole steps on a GPU, or its kernels on the host, beside the same steps on a CPU."""

import sys

import numpy as np
import pytest
from scipy import sparse

from daskxml.core.arrays import Csr, Partition, Segment
from daskxml.core.errors import ConfigError
from daskxml.data.rows import from_scipy
from daskxml.kernels import get_kernels
from daskxml.kernels.operands import DeviceNumber
from daskxml.models.network.spec import ModelSpec
from daskxml.optim import OptimizerConfig
from daskxml.worker.replica import Replica
from harness.cuda_on_host import FORWARD, SHUFFLED, emulated, gpu_kernels, needs_compiler, needs_gpu

DEVICES = pytest.mark.parametrize(
    "make",
    [
        pytest.param(emulated, id="on the host", marks=needs_compiler),
        pytest.param(gpu_kernels, id="gpu", marks=needs_gpu),
    ],
)
FEATURES, LABELS, ROWS, BATCH_ROWS = 40, 150, 30, 16


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = sparse.random_array((ROWS, FEATURES), density=0.2, rng=rng, format="csr", dtype=np.float32)
    y = sparse.random_array((ROWS, LABELS), density=0.03, rng=rng, format="csr", dtype=np.float32)
    return Partition(from_scipy(x), from_scipy(y, ones=True))


def replica(kernels, optimizer="sgd", **settings):
    dtype = settings.pop("output_dtype", "float32")
    budget, decay = settings.pop("budget", 1 << 20), settings.pop("weight_decay", 0.0)
    spec = ModelSpec(features=FEATURES, labels=LABELS, **{"hidden": (8,), **settings})
    config = OptimizerConfig(name=optimizer, weight_decay=decay)
    made = Replica(
        spec, config, kernels, max_batch_rows=BATCH_ROWS, logits_budget_bytes=budget,
        output_dtype=dtype,
    )  # fmt: skip
    start = np.random.default_rng(1).standard_normal(made.layout.size).astype(np.float32)
    kernels.copy(made.flat, kernels.to_device(0.3 * start))
    return made


def train(kernels, steps=3, **settings):
    """A few steps over two segments each; the losses, the model and what it ranks first."""
    size = settings.pop("batch_rows", BATCH_ROWS)
    part, made, losses = kernels.to_device(data()), replica(kernels, **settings), []
    for step in range(steps):
        rows = np.random.default_rng(step).permutation(ROWS)[:size].astype(np.int64)
        batch = [
            Segment(part, kernels.to_device(rows[:5])),
            Segment(part, kernels.to_device(rows[5:])),
        ]
        losses.append(made.step(batch, 0.1, key=step).loss_sum)
    ids, scores = made.top_k([Segment(part, kernels.to_device(np.arange(ROWS)))], 4)
    return np.array([float(loss) for loss in losses]), kernels.to_host(made.flat), ids, scores


@DEVICES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss": "sigmoid"},
        {"loss": "sigmoid", "activation": "sigmoid", "hidden": (8, 6)},
        {"budget": 16 * 40 * 4},  # labels in blocks
        {"batch_rows": 13},
        {"batch_rows": 9, "loss": "sigmoid", "budget": 16 * 40 * 4, "optimizer": "adam"},
        {"dropout": 0.3, "feature_dropout": 0.2},
        {"hidden": ()},
        *({"optimizer": name} for name in ("momentum", "nesterov", "adam", "lamb", "row-rms")),
    ],
    ids=str,
)
def test_steps_are_those_of_a_cpu(make, settings):
    losses, flat, ids, scores = train(make(), **settings)
    cpu = train(get_kernels("cpu", 1), **settings)
    np.testing.assert_allclose(losses, cpu[0], rtol=1e-4)
    np.testing.assert_allclose(flat, cpu[1], rtol=1e-3, atol=1e-4)
    assert (ids == cpu[2]).mean() > 0.95
    np.testing.assert_allclose(scores, cpu[3], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [pytest.param(gpu_kernels, id="gpu", marks=needs_gpu)])
@pytest.mark.parametrize(
    "settings",
    [
        *({"optimizer": name} for name in ("sgd", "nesterov", "adam", "lamb", "row-rms")),
        {"loss": "sigmoid", "dropout": 0.3, "feature_dropout": 0.2, "budget": 250 * 400 * 4},
    ],
    ids=str,
)
def test_large_steps_are_those_of_a_cpu(monkeypatch, make, settings):
    """With more rows, labels, units and features in a row than one block of threads takes."""
    sizes = {"FEATURES": 2000, "LABELS": 3000, "ROWS": 600, "BATCH_ROWS": 250}
    for name, size in sizes.items():
        monkeypatch.setattr(sys.modules[__name__], name, size)
    losses, flat, _, scores = train(make(), hidden=(300,), **settings)
    cpu = train(get_kernels("cpu", 1), hidden=(300,), **settings)
    np.testing.assert_allclose(losses, cpu[0], rtol=1e-4)
    assert np.linalg.norm(flat - cpu[1]) < 1e-3 * np.linalg.norm(cpu[1])
    np.testing.assert_allclose(scores, cpu[3], rtol=1e-2, atol=1e-3)


@DEVICES
def test_the_same_run_twice_has_the_same_bits(make):
    first, second = (train(make(), dropout=0.3)[1].tobytes() for _ in range(2))
    assert first == second


@needs_compiler
@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "adam"}, {"output_dtype": "float16", "hidden": (64,)}],
    ids=str,
)
def test_any_order_of_threads_has_the_same_bits(settings):
    forward, shuffled = (train(emulated(order), 2, **settings) for order in (FORWARD, SHUFFLED))
    assert forward[1].tobytes() == shuffled[1].tobytes()
    assert forward[0].tobytes() == shuffled[0].tobytes()


FORMS = [
    *({"optimizer": name} for name in ("sgd", "momentum", "adam", "row-rms")),
    {"optimizer": "sgd", "weight_decay": 0.1},
    {"optimizer": "adam", "loss": "sigmoid", "dropout": 0.3, "feature_dropout": 0.2},
    {"budget": 16 * 40 * 4},
    *({"optimizer": name, "output_dtype": "float16"} for name in ("sgd", "lamb")),
    *({"optimizer": name, "output_dtype": "float16", "hidden": (64,)} for name in ("sgd", "adam")),
    {"loss": "sigmoid", "output_dtype": "float16", "budget": 16 * 40 * 4},
]


@needs_compiler
@pytest.mark.parametrize("settings", FORMS, ids=str)
def test_steps_wait_for_nothing_and_allocate_nothing(settings):
    """Not for the loss, nor for the number of features in use; one wait brings all losses."""
    kernels = emulated()
    part, made = kernels.to_device(data()), replica(kernels, **settings)
    batches = [[Segment(part, kernels.to_device(np.arange(n)))] for n in (16, 9, 16)]
    device = kernels._device
    is_fused = settings.get("hidden") == (64,) and settings["optimizer"] == "sgd"
    assert made.stores_logits == (not is_fused)
    made.step(batches[0], 0.1, key=0)
    before = device.downloads, device.allocations
    results = [made.step(batch, 0.1, key) for key, batch in enumerate(batches)]
    assert (device.downloads, device.allocations) == before
    assert [float(result.loss_sum) > 0.0 for result in results] == [True] * 3
    assert device.downloads == before[0] + 1
    assert device.ranges == {"step": 4}


def batches(kernels, sizes, seed=3):
    """Batches of several sizes, each of rows of two partitions."""
    parts, rng = [kernels.to_device(data(seed)) for seed in (0, 1)], np.random.default_rng(seed)
    for size in sizes:
        rows = np.split(rng.permutation(ROWS)[:size].astype(np.int64), [size // 3])
        yield [
            Segment(part, kernels.to_device(each)) for part, each in zip(parts, rows, strict=True)
        ]


CAPTURED = [
    {},
    {"dropout": 0.3, "feature_dropout": 0.2},
    pytest.param({"loss": "sigmoid", "hidden": (8, 6)}, marks=pytest.mark.slow),
    pytest.param({"budget": 16 * 40 * 4}, marks=pytest.mark.slow),
    {"hidden": (64,), "output_dtype": "float16"},
]


@DEVICES
@pytest.mark.parametrize("settings", CAPTURED, ids=str)
def test_replayed_steps_have_the_bits_of_steps_that_are_not_captured(make, settings):
    """Of batches of several sizes in turns, at rates that change."""
    models = []
    for captures in (False, True):
        kernels = make()
        made, losses = replica(kernels, **settings), []
        made._captured.captures = captures
        for number, batch in enumerate(batches(kernels, (16, 9, 16, 16, 9, 1, 9, 16, 1, 1, 12))):
            losses.append(made.step(batch, 0.1 / (1 + number // 4), key=number).loss_sum)
        models.append((kernels.to_host(made.flat).tobytes(), [float(loss) for loss in losses]))
    assert models[0] == models[1]


@needs_compiler
def test_a_replayed_step_is_a_handful_of_calls():
    """A write, a launch for the features and labels of each segment, the graph, and its loss."""
    kernels = emulated()
    made, (batch,), counts = replica(kernels), batches(kernels, (16,)), []
    for number in range(4):
        kernels._device.queued.clear()
        made.step(batch, 0.1, key=number)
        counts.append(kernels._device.queued.total())
    assert counts[0] > 30
    assert counts[2:] == [7, 7], kernels._device.queued


@needs_compiler
def test_a_captured_step_outlives_what_grows_around_it():
    """Larger batches, and memory that is given back, leave the bits of the same steps."""
    flats = []
    for releases in (False, True):
        kernels = emulated()
        made = replica(kernels)
        for number, batch in enumerate(batches(kernels, (4, 4, 4, 20, 4, 4, 20, 20, 4))):
            if number == 3:
                made.resize(24)
            if releases and number in (2, 5):
                made.release()
            made.step(batch, 0.1, key=number)
        flats.append(kernels.to_host(made.flat).tobytes())
    assert flats[0] == flats[1]


@needs_compiler
def test_a_number_in_device_memory_is_nothing_that_a_kernel_may_overlook():
    kernels = emulated()
    rate = DeviceNumber(kernels.to_device(np.float32([0.5])), -2.0)
    out = kernels.zeros(4)
    kernels.add_scaled(out, kernels.zeros(4), rate)  # reads no such memory
    assert np.isnan(kernels.to_host(out)).all()


NARROW = [
    {},
    {"budget": 16 * 40 * 4, "batch_rows": 13},
    {"loss": "sigmoid", "weight_decay": 0.1},
    *({"optimizer": name} for name in ("momentum", "nesterov", "adam", "row-rms")),
]


FUSED = [
    {"hidden": (64,)},
    {"hidden": (128,), "budget": 16 * 70 * 2, "batch_rows": 13, "weight_decay": 0.1},
    {"hidden": (64,), "optimizer": "adam", "budget": 16 * 70 * 2},
    {"hidden": (8, 64), "optimizer": "lamb", "dropout": 0.2},
]


@DEVICES
@pytest.mark.parametrize(
    "settings",
    [
        *NARROW[:3],
        {"hidden": ()},
        *FUSED[:2],
        *(
            pytest.param(s, marks=pytest.mark.slow)
            for s in (*NARROW[3:], {"optimizer": "lamb"}, *FUSED[2:])
        ),
    ],
    ids=str,
)
def test_steps_with_logits_of_float16_are_close_to_those_without(make, settings):
    """And ranks, which have float32 logits of much the same weights, even more so."""
    losses, flat, ids, scores = train(make(), output_dtype="float16", **settings)
    wide = train(make(), **settings)
    np.testing.assert_allclose(losses, wide[0], rtol=2e-3)
    assert 0.0 < np.linalg.norm(flat - wide[1]) < 2e-3 * np.linalg.norm(wide[1])
    np.testing.assert_allclose(scores, wide[3], rtol=0.01, atol=0.002)
    assert (ids == wide[2]).mean() > 0.95


@DEVICES
def test_small_probabilities_are_not_lost_in_float16(make):
    """Many rows and labels, a share of a gradient far below what float16 itself can tell."""
    kernels, labels, rows = make(), 4000, 64
    x = Csr(np.arange(rows + 1), np.zeros(rows, np.int32), np.ones(rows, np.float32), 1)
    y = Csr(np.arange(rows + 1), np.zeros(rows, np.int32), None, labels)
    part, batch = kernels.to_device(Partition(x, y)), np.arange(rows)
    changes = []
    for dtype in ("float32", "float16"):
        spec = ModelSpec(features=1, labels=labels, hidden=(4,))
        made = Replica(spec, OptimizerConfig(), kernels, max_batch_rows=rows, output_dtype=dtype)
        start = kernels.to_host(made.flat).copy()
        views = made.layout.views(start)
        views["hidden0.bias"][:], views["output.bias"][0] = 1.0, 9.0
        kernels.copy(made.flat, kernels.to_device(start))
        made.step([Segment(part, kernels.to_device(batch))], 1.0, key=0)
        after = made.layout.views(kernels.to_host(made.flat))
        changes.append([after[name] - views[name] for name in ("output.weight", "output.bias")])
    for wide, half in zip(*changes, strict=True):
        assert 0.0 < abs(wide[-1]).max() < 1e-4
        np.testing.assert_allclose(half, wide, rtol=2e-3)


def test_a_cpu_has_no_float16():
    with pytest.raises(ConfigError, match=r"^output layer: float16 logits need a GPU$"):
        replica(get_kernels("cpu", 1), output_dtype="float16")


@DEVICES
def test_the_flat_vector_is_what_steps_left_and_what_they_start_from(make):
    kernels = make()
    part, made = kernels.to_device(data()), replica(kernels)
    batch = [Segment(part, kernels.to_device(np.arange(16)))]
    given = kernels.to_host(made.flat).copy()
    made.top_k(batch, 3)
    assert (kernels.to_host(made.flat) == given).all()
    made.step(batch, 0.1, key=0)
    left = kernels.to_host(made.flat).copy()
    assert (left != given).any()
    made.step(batch, 0.0, key=0)
    assert (kernels.to_host(made.flat) == left).all()  # there and back changes nothing
    kernels.fill(made.flat, 0.0)
    assert float(made.step(batch, 0.0, key=0).loss_sum) == pytest.approx(
        16 * np.log(LABELS), rel=1e-4
    )
