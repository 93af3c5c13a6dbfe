"""Every registered optimizer, fed as a model feeds it, against the formulas of its paper."""

import numpy as np
import pytest

from daskxml.core.arrays import Csr
from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels
from daskxml.kernels.cpu import thread_team
from daskxml.kernels.cpu.kernels import CpuKernels
from daskxml.kernels.operands import KEEP_ALL
from daskxml.optim import OPTIMIZERS, GradientBuffer, Optimizer, OptimizerConfig
from harness.formulas import Reference
from harness.naive_sparse import dense_rows

SHAPES = {"hidden0.weight": (30, 7), "hidden0.bias": (7,), "hidden1.weight": (7, 5),
          "hidden1.bias": (5,), "output.weight": (23, 5), "output.bias": (23,)}  # fmt: skip
SIZE = sum(int(np.prod(shape)) for shape in SHAPES.values())
UNUSED = 25  # features from here on are in no batch
ROWS = 12
CHUNK_FLOATS = get_kernels("cpu", 1).gradient_floats
KERNELS = {threads: get_kernels("cpu", threads) for threads in (1, 2)}
EVERY = pytest.mark.parametrize("name", OPTIMIZERS)
OPTIONS = {
    "plain": {},
    "decay": {"weight_decay": 0.3},
    "clip": {"clip_norm": 0.5, "weight_decay": 0.1},
    "output": {"output": "sgd", "output_lr": 0.25, "weight_decay": 0.1},
    "output adam": {"output": "adam", "clip_norm": 2.0},
}


def views(flat):
    found, start = {}, 0
    for name, shape in SHAPES.items():
        stop = start + int(np.prod(shape))
        found[name] = flat[start:stop].reshape(shape)
        start = stop
    return found


def make(config, threads=1, seed=0):
    flat = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
    parameters = views(flat)
    return flat, Optimizer(config, KERNELS[threads], parameters, views, SIZE)


class Batch:
    """A step's gradients in the forms in which a model finds them, random but for their shapes."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        indices = [np.sort(rng.choice(UNUSED, 6, replace=False)) for _ in range(9)]
        data = rng.standard_normal(54).astype(np.float32)
        self.x = Csr(np.arange(0, 55, 6), np.concatenate(indices).astype(np.int32), data, 30)
        self.rows = rng.integers(0, 9, ROWS)
        self.delta, self.below, self.middle, self.logits, self.top = (
            rng.standard_normal((ROWS, width)).astype(np.float32) / ROWS
            for width in (7, 7, 5, 23, 5)
        )

    def feed(self, updates, lr=0.1):
        """Give the gradients to an optimizer: blocks of labels, segments of rows."""
        for start in (12, 0):
            span = slice(start, min(start + 12, 23))
            left = np.ascontiguousarray(self.logits.T)[span].T
            updates.product("output.weight", span, left, self.top, lr)
            updates.dense("output.bias", left.sum(axis=0), lr, rows=span)
        updates.product("hidden1.weight", slice(None), self.below, self.middle, lr)
        updates.dense("hidden1.bias", self.middle.sum(axis=0), lr)
        for span in (slice(0, 5), slice(5, 5), slice(5, ROWS)):
            rows, delta = self.rows[span], self.delta[span]
            updates.sparse_product("hidden0.weight", self.x, rows, delta, lr, KEEP_ALL)
        updates.dense("hidden0.bias", self.delta.sum(axis=0), lr)

    def dense(self):
        """The same as whole arrays, in float64."""
        wide = {name: np.float64(array) for name, array in vars(self).items() if name in
                ("delta", "below", "middle", "logits", "top")}  # fmt: skip
        return {
            "hidden0.weight": dense_rows(self.x, self.rows).T @ wide["delta"],
            "hidden0.bias": wide["delta"].sum(axis=0),
            "hidden1.weight": wide["below"].T @ wide["middle"],
            "hidden1.bias": wide["middle"].sum(axis=0),
            "output.weight": wide["logits"].T @ wide["top"],
            "output.bias": wide["logits"].sum(axis=0),
        }


def stream(trained, steps, lr=0.1, first=0):
    for seed in range(first, first + steps):
        trained.begin_step()
        Batch(seed).feed(trained, lr)
        trained.end_step(lr)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(CpuKernels, "gradient_floats", 20)


@EVERY
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_stream_of_gradients_equals_the_formulas(name, options):
    config = OptimizerConfig(name=name, **options)
    flat, trained = make(config)
    reference = Reference(config, views(flat))
    for seed in range(6):
        stream(trained, 1, first=seed)
        reference.step(Batch(seed).dense(), 0.1)
    for parameter, expected in reference.weights.items():
        np.testing.assert_allclose(views(flat)[parameter], expected, rtol=2e-5, atol=2e-5)
    for moment, keys in (("momentum", "b"), ("first", "m"), ("second", "v")):
        if moment in trained.state():
            held = views(trained.state()[moment])
            for parameter, state in reference.state.items():
                expected = state.get(keys, np.zeros(SHAPES[parameter]))
                np.testing.assert_allclose(held[parameter], expected, rtol=2e-5, atol=2e-6)


@EVERY
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_apply_equals_the_stream(name, options):
    config = OptimizerConfig(name=name, **options)
    (streamed, one), (applied, other) = make(config), make(config)
    buffer = GradientBuffer(KERNELS[1], SIZE, views)
    for seed in range(4):
        stream(one, 1, first=seed)
        buffer.clear()
        Batch(seed).feed(buffer, -1.0)
        other.begin_step()
        other.apply(buffer.views, 0.1)
    np.testing.assert_allclose(applied, streamed, rtol=1e-5, atol=1e-5)


@EVERY
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_same_bits_with_one_thread_and_two(name, options, monkeypatch):
    config, runs = OptimizerConfig(name=name, **options), []
    for threads in (1, 2):
        flat, trained = make(config, threads)
        stream(trained, 3)
        with monkeypatch.context() as patch:
            patch.setattr(thread_team, "ROW_GRAIN", 1)
            trained.begin_step()
            gradient = {n: np.float32(array) for n, array in Batch(9).dense().items()}
            trained.apply(gradient, 0.1)
        state = {key: array.tobytes() for key, array in trained.state().items()}
        runs.append((flat.tobytes(), state))
    assert runs[0] == runs[1]


def test_chunks_wake_no_thread():
    """A chunk is updated within a thread: sharing it among threads again would wait for itself."""
    assert CHUNK_FLOATS < 2 * thread_team.ROW_GRAIN


@EVERY
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_rows_that_no_batch_touches_wait(name, options):
    flat, trained = make(OptimizerConfig(name=name, **options))
    before = flat.copy()
    buffer = GradientBuffer(KERNELS[1], SIZE, views)
    stream(trained, 2)
    Batch(2).feed(buffer, -1.0)
    trained.begin_step()
    trained.apply(buffer.views, 0.1)
    weight, old = views(flat)["hidden0.weight"], views(before)["hidden0.weight"]
    assert (weight[UNUSED:] == old[UNUSED:]).all()
    assert (weight[:UNUSED] != old[:UNUSED]).any(axis=1).all()
    for moment, array in trained.state().items():
        if moment != "steps":
            assert not views(array)["hidden0.weight"][UNUSED:].any()


@EVERY
def test_touched_rows_move_once_a_step_and_late_ones_by_the_global_step(name):
    """A feature that first occurs in step 3: Adam's correction is that of step 3."""
    config = OptimizerConfig(name=name, weight_decay=0.1)
    flat, trained = make(config)
    reference = Reference(config, views(flat))
    stream(trained, 2)
    for seed in (0, 1):
        reference.step(Batch(seed).dense(), 0.1)
    x = Csr(np.array([0, 1]), np.array([UNUSED], np.int32), np.ones(1, np.float32), 30)
    delta = np.linspace(-1, 1, 7, dtype=np.float32)[None]
    trained.begin_step()
    trained.sparse_product("hidden0.weight", x, np.array([0, 0]), np.tile(delta, (2, 1)), 0.1, KEEP_ALL)  # fmt: skip  # noqa: E501
    trained.end_step(0.1)
    gradient = np.zeros((30, 7))
    gradient[UNUSED] = 2 * delta
    reference.step({"hidden0.weight": gradient}, 0.1)
    expected = reference.weights["hidden0.weight"]
    np.testing.assert_allclose(views(flat)["hidden0.weight"], expected, rtol=2e-5, atol=2e-6)


@EVERY
def test_a_quadratic_is_minimised(name):
    flat, trained = make(OptimizerConfig(name=name))
    for step in range(400):
        trained.begin_step()
        gradient = {key: array - 1.0 for key, array in views(flat).items()}
        trained.apply(gradient, 0.1 * (1.0 - step / 400))
    np.testing.assert_allclose(flat, 1.0, atol=5e-3)


@EVERY
def test_only_the_named_rows_change(name):
    flat, trained = make(OptimizerConfig(name=name))
    before = flat.copy()
    trained.begin_step()
    trained.dense("output.weight", np.ones((2, 5), np.float32), 0.1, rows=slice(1, 3))
    trained.end_step(0.1)
    changed = views(flat != before)
    assert changed["output.weight"][1:3].all()
    assert np.flatnonzero(flat != before).size == 10


@EVERY
def test_a_state_that_is_put_back_goes_on_with_the_same_bits(name):
    config = OptimizerConfig(name=name)
    flat, trained = make(config)
    stream(trained, 3)
    saved = {key: array.copy() for key, array in trained.state().items()}
    copy, other = make(config)
    copy[:] = flat
    for key, array in other.state().items():
        array[:] = saved[key]
    stream(trained, 2, first=3)
    stream(other, 2, first=3)
    assert (copy == flat).all()
    assert saved == {} or saved["steps"].tolist() == [3]


@EVERY
def test_reset_is_as_new(name):
    config = OptimizerConfig(name=name)
    flat, trained = make(config)
    stream(trained, 3)
    trained.reset()
    assert not any(array.any() for array in trained.state().values())
    flat[:] = make(config)[0]
    fresh, new = make(config)
    stream(trained, 2)
    stream(new, 2)
    assert (flat == fresh).all()


@EVERY
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_buffers_are_allocated_once(name, options):
    _, trained = make(OptimizerConfig(name=name, **options))
    stream(trained, 2)
    held = trained.nbytes
    stream(trained, 3)
    assert trained.nbytes == held


TORCH = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adam": ("AdamW", {"weight_decay": 0.2}),
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("clip", [0.0, 0.4])
def test_dense_parameters_move_as_in_torch(name, clip):
    torch = pytest.importorskip("torch")
    kind, options = TORCH[name]
    decay = options.get("weight_decay", 0.0)
    flat, trained = make(OptimizerConfig(name=name, weight_decay=decay, clip_norm=clip))
    weight = torch.nn.Parameter(torch.tensor(views(flat)["output.weight"].copy()))
    theirs = getattr(torch.optim, kind)([weight], lr=0.1, **options)
    for seed in range(8):
        gradient = np.float32(Batch(seed).dense()["output.weight"])
        trained.begin_step()
        trained.apply({"output.weight": gradient}, 0.1)
        weight.grad = torch.tensor(gradient)
        if clip:
            torch.nn.utils.clip_grad_norm_([weight], clip)
        theirs.step()
    mine = views(flat)["output.weight"]
    np.testing.assert_allclose(mine, weight.detach().numpy(), rtol=2e-5, atol=2e-5)


def test_sparse_rows_move_as_in_torchs_sparse_adam():
    torch = pytest.importorskip("torch")
    epsilon = 1e-15  # theirs is not divided by the root of the bias correction
    flat, trained = make(OptimizerConfig(name="adam", epsilon=epsilon))
    weight = torch.nn.Parameter(torch.tensor(views(flat)["hidden0.weight"].copy()))
    theirs = torch.optim.SparseAdam([weight], lr=0.1, eps=epsilon)
    for seed in range(6):
        gradient = np.float32(Batch(seed).dense()["hidden0.weight"])
        trained.begin_step()
        trained.apply({"hidden0.weight": gradient}, 0.1)
        used = np.flatnonzero(gradient.any(axis=1))
        index, values = torch.tensor(used[None]), torch.tensor(gradient[used])
        weight.grad = torch.sparse_coo_tensor(index, values, (30, 7), check_invariants=True)
        theirs.step()
    mine = views(flat)["hidden0.weight"]
    np.testing.assert_allclose(mine, weight.detach().numpy(), rtol=2e-5, atol=2e-5)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"name = 'adagrad': must be one of 'sgd', 'mom"):
        OptimizerConfig(name="adagrad")
    with pytest.raises(ConfigError, match=r"output = 'x': must be one of '', 'sgd'"):
        OptimizerConfig(output="x")
    with pytest.raises(ConfigError, match=r"beta2 = 1\.0: must be"):
        OptimizerConfig(beta2=1.0)
    with pytest.raises(ConfigError, match=r"on_merge = 'drop'"):
        OptimizerConfig(on_merge="drop")
