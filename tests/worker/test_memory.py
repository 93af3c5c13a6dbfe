"""A worker with too little memory: for the model, for a batch, in the middle of a run."""

from dataclasses import replace

import numpy as np
import psutil
import pytest

import daskxml
from daskxml.config import load_run_config
from daskxml.core.errors import TrainingError
from daskxml.data.rows import label_counts, to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import registry
from daskxml.models.network.spec import ModelSpec
from daskxml.optim import OptimizerConfig
from daskxml.session.ledger import Span, cut_batches
from daskxml.worker.batch_runner import warm_up
from daskxml.worker.memory import MemoryPlan, fit_memory, plan_memory
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.training_worker import TrainingWorker
from harness.cuda_on_host import emulated, needs_compiler
from harness.worker_settings import make_settings

FEATURES, LABELS, ROWS = 60, 40, 96
STAGED_BYTES = 2 * 12 * 512 + 60 * 128  # of a captured step of 16 of them, in its room
SPARE_BYTES = 29_000  # rows are three times longer than 8: enough for 16 of them, not for 32
pytestmark = needs_compiler


def settings_of(spec=None, **changes):
    spec = spec or ModelSpec(features=FEATURES, labels=LABELS, hidden=(16,))
    values = {"device": "cuda"} | changes
    return make_settings(spec, **{"rows": ROWS} | values)


@pytest.fixture(scope="module")
def part():
    return generate(SyntheticSpec(rows=ROWS, features=FEATURES, labels=LABELS, seed=4))[0]


@pytest.fixture
def device(monkeypatch):
    """Makes ``device = "cuda"`` a device of the host, with as much memory as is asked for."""

    def make(budget_bytes):
        kernels = emulated(budget_bytes=budget_bytes)
        monkeypatch.setitem(registry.KERNELS, "cuda", lambda threads, exact: kernels)
        return kernels._device

    return make


def member_of(settings, part):
    made = TrainingWorker(settings)
    made.initialize()
    made.rows.hold_all([part], [])
    made.count_labels(label_counts(part.labels, LABELS))
    return made


def lease(worker, rows=64, batch_rows=32, lr=0.5):
    return worker.lease(cut_batches([Span(0, 0, 0, rows)], batch_rows), lr, {})


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("sgd", "float32"), ("adam", "float32"), ("lamb", "float32"), ("sgd", "float16"),
     ("adam", "float16")],
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 32])
def test_the_plan_is_what_is_allocated(device, part, name, dtype, rows):
    held = device(0)
    optimizer = OptimizerConfig(name=name)
    settings = settings_of(optimizer=optimizer, max_batch_rows=rows, output_dtype=dtype)
    made = TrainingWorker(settings)
    made.replica.reserve(rows, rows * settings.data.row_nonzeros)
    assert made.memory.total_bytes == held.used_bytes


def test_the_plan_of_workers_that_step_together_has_what_they_exchange(device):
    held = device(0)
    made = TrainingWorker(settings_of(kind="is_joint"))
    made.replica.reserve(32, 32 * made.settings.data.row_nonzeros)
    for name in ("base", "change"):  # of local steps, as a gradient and what becomes of it
        made.array(name)
    assert made.memory.total_bytes == held.used_bytes


def test_a_model_larger_than_the_device_is_refused_with_the_sizes(device):
    held = device(30_000)
    with pytest.raises(
        TrainingError,
        match=r"60 features, 40 labels and hidden layers \[16\] needs"
        r" .* MiB \(.*\); the worker has .* MiB free: model.hidden = \[.*\] fits, or label trees",
    ):
        TrainingWorker(settings_of())  # fmt: skip
    assert held.used_bytes == 0


def test_a_process_that_may_take_less_than_the_machine_has_refuses_what_does_not_fit():
    """Models, moments and batches count, and so does what the process has taken before."""
    taken = psutil.Process().memory_info().rss
    spec = ModelSpec(features=1000, labels=1000, hidden=(1000,))
    adam = settings_of(spec, device="cpu", optimizer=OptimizerConfig(name="adam"))
    models = 6 * 4 * spec.parameter_count
    for limit, is_enough in ((taken + models // 2, False), (taken + 3 * models, True)):
        settings = replace(adam, slot=replace(adam.slot, memory_bytes=limit))
        if is_enough:
            TrainingWorker(settings)
        else:
            with pytest.raises(TrainingError, match=r"model.hidden = \[\d+\] fits, or label trees"):
                TrainingWorker(settings)


def spare_bytes(settings, batch_rows):
    """What a run with batches of so many rows needs, and a little."""
    return plan_memory(settings, emulated(), batch_rows).total_bytes


def test_batches_that_cannot_fit_are_smaller_from_the_start(device, part):
    settings = settings_of(max_batch_rows=64, row_nonzeros=30)
    enough = spare_bytes(settings, 32) + part.nbytes + 4_000
    assert spare_bytes(settings, 64) > enough
    held = device(enough)
    made = member_of(settings, part)
    done = lease(made, batch_rows=64)
    assert (made.memory.batch_rows, done.max_batch_rows, done.updates) == (32, 32, 2)
    held.budget_bytes += 100_000  # for rows that are made up
    assert warm_up(made.replica, made.settings) > 0.0
    assert lease(made, batch_rows=64).max_batch_rows == 0  # told once


@pytest.mark.parametrize(("spare", "rows"), [(0, 64), (-1, 32)])
def test_batches_are_as_large_as_fit_to_the_byte(spare, rows):
    settings = settings_of(max_batch_rows=64)
    kernels = emulated(budget_bytes=spare_bytes(settings, 64) + spare)
    assert fit_memory(settings, kernels).batch_rows == rows


def test_a_batch_is_tried_again_in_halves(device, part):
    """Rows are longer than was thought: memory that nobody planned for runs out in a step."""
    held = device(0)
    made = member_of(settings_of(row_nonzeros=1), part)
    held.budget_bytes = held.used_bytes + SPARE_BYTES + STAGED_BYTES
    done = lease(made, lr=0.5)
    assert (done.max_batch_rows, done.updates) == (16, 4)
    wanted = member_of(settings_of(device="cpu"), part)
    expected = lease(wanted, batch_rows=16, lr=0.25)
    np.testing.assert_allclose(done.loss_sum, expected.loss_sum, rtol=1e-4)
    np.testing.assert_allclose(
        made.kernels.to_host(made.replica.flat), wanted.replica.flat, rtol=1e-3, atol=1e-4
    )


def test_memory_that_runs_out_in_the_middle_of_a_step_ends_the_run(device, part):
    """It must not be tried again: half of the layers have moved."""
    held = device(0)
    made = member_of(settings_of(optimizer=OptimizerConfig(name="momentum")), part)
    reserve = made.replica.optimizer.reserve
    made.replica.optimizer.end_step = lambda lr: held.empty(1 << 30, "uint8")
    made.replica.optimizer.reserve = lambda *sizes: (
        reserve(*sizes), setattr(held, "budget_bytes", 1 << 29),
    )  # fmt: skip
    with pytest.raises(TrainingError, match="memory ran out in the middle of a step"):
        lease(made)


@pytest.mark.parametrize("name", ["adam", pytest.param("lamb", marks=pytest.mark.slow), "momentum"])
def test_a_step_without_memory_has_changed_nothing(device, part, name):
    held = device(0)
    made = member_of(settings_of(row_nonzeros=1, optimizer=OptimizerConfig(name=name)), part)
    before, kernels = made.kernels.to_host(made.replica.flat), made.kernels
    segments = made.rows.batch([Span(0, 0, 0, 32)], {})
    held.budget_bytes = held.used_bytes + SPARE_BYTES
    with pytest.raises(MemoryError):
        made.replica.step(segments, 0.5, 0)
    assert made.replica.optimizer.state()["steps"] == 0
    assert (kernels.to_host(made.replica.flat) == before).all()
    done = lease(made)
    assert done.updates == made.replica.optimizer.state()["steps"] > 2
    assert 0 < done.max_batch_rows < 32


def test_a_gradient_is_the_mean_over_the_parts(device, part):
    held = device(0)
    made = member_of(settings_of(row_nonzeros=1), part)
    whole = member_of(settings_of(device="cpu"), part)
    whole.runner.gradient([Span(0, 0, 0, 31)], whole.gradient, 0.1, {})
    assert made.gradient.flat.size
    made.rows.sends_numbers = True  # as where workers step together
    held.budget_bytes = held.used_bytes + SPARE_BYTES
    step = made.runner.gradient([Span(0, 0, 0, 31)], made.gradient, 0.1, {})
    assert step.rows == 31
    assert made.runner.max_batch_rows < 31
    found = made.kernels.to_host(made.gradient.flat)
    np.testing.assert_allclose(found, whole.gradient.flat, rtol=1e-4, atol=1e-6)


def test_no_room_for_one_row_ends_the_run_in_one_line(device, part):
    held = device(0)
    made = member_of(settings_of(row_nonzeros=1), part)
    held.budget_bytes = held.used_bytes
    with pytest.raises(TrainingError, match=r"no memory for a batch of one row \(.*\): make"):
        lease(made)


def test_a_run_goes_on_with_smaller_batches(device, part):
    """Through the single-process executor: the event is in the history, and leases are smaller."""
    values = {
        "model": {"hidden": [16]}, "training": {"epochs": 4, "logits_budget": "1MiB"},
        "checkpoint": {"every": 0},
        "strategy": {"name": "adaptive-sgd", "batch_max": 32, "megabatch_batches": 3, "lr": 0.5},
        "cluster": {"device": "cuda"},
    }  # fmt: skip
    train = daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
    roomy = device(0)
    free = daskxml.simulate(values, speeds=[1.0], train=train)
    device(roomy.peak_bytes - 100)
    run = daskxml.simulate(values, speeds=[1.0], train=train)
    events = [(row["megabatch"], event) for row in run.history for event in row["events"]]
    first, event = events[0]
    assert (event["kind"], event["worker"]) == ("memory", "0")
    assert 0 < event["batch_rows"] < 32
    later = [row["workers"]["0"]["batch_rows"] for row in run.history[first:]]
    assert later
    assert max(later) <= event["batch_rows"]
    assert (run.reason, run.history[-1]["rows"]) == ("epochs", free.history[-1]["rows"])
    assert run.history[-1]["loss"] < run.history[0]["loss"]


@pytest.mark.parametrize("exact", [True, False])
def test_a_gpu_multiplies_as_the_run_file_says(monkeypatch, part, exact):
    asked = []

    def make(threads, exact):
        asked.append(exact)
        return emulated()

    monkeypatch.setitem(registry.KERNELS, "cuda", make)
    config = load_run_config({"training": {"epochs": 1}, "gpu": {"exact": exact}})
    spec = config.model_spec(FEATURES, LABELS)
    facts = DataFacts(spec=spec, rows=ROWS, stream_rows=(ROWS,), row_nonzeros=8)
    TrainingWorker(WorkerSettings.of(config, facts, WorkerSlot(device="cuda")))
    assert asked == [exact]


def test_sizes_are_in_the_largest_unit_that_has_one_of_it() -> None:
    for model_bytes, text in ((1 << 30, "1.0 GiB"), ((1 << 30) - (1 << 20), "1,023.0 MiB")):
        plan = MemoryPlan(model_bytes=model_bytes, batch_bytes=0, batch_rows=1, device="cpu")
        assert plan.describe().startswith(f"{text} (")
