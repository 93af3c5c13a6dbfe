"""How much a batch's logits may take: what a worker with a GPU tries, and what it keeps."""

import json

import pytest

import daskxml
from daskxml.config import load_run_config
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import get_kernels, registry
from daskxml.models.network.spec import ModelSpec
from daskxml.optim import OptimizerConfig
from daskxml.worker.memory import candidate_budgets, choose_budget, fastest, plan_memory
from daskxml.worker.settings import LOGITS_BYTES, DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.training_worker import TrainingWorker
from harness.cuda_on_host import HostDevice, emulated, needs_compiler
from harness.worker_settings import make_settings

LABELS, ROWS = 200, 16
WHOLE = 4 * LABELS * ROWS


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    """Room for a part of the logits, so that there is something to choose."""
    monkeypatch.setattr(HostDevice, "cache_bytes", 8192)


def settings_of(spec=None, **changes):
    spec = spec or ModelSpec(features=60, labels=LABELS, hidden=(8,))
    values = {"device": "cuda", "max_batch_rows": ROWS, "logits_budget_bytes": 0} | changes
    return make_settings(spec, **{"rows": 100} | values)


@pytest.mark.parametrize(
    ("step_s", "chosen"),
    [
        ({10: 1.0}, 10),
        ({10: 1.0, 20: 0.5, 30: 0.75}, 20),
        ({10: 0.508, 20: 0.5, 30: 0.499}, 10),  # alike: the one that takes least
        ({10: 0.52, 20: 0.5, 30: 0.6}, 20),
    ],
)
def test_the_fastest_is_kept_and_of_those_alike_the_smallest(step_s, chosen):
    assert fastest(step_s) == fastest(dict(reversed(step_s.items()))) == chosen


def test_candidates_are_never_more_than_the_whole_matrix():
    assert candidate_budgets(LOGITS_BYTES + 1, 1 << 20) == (
        1 << 19, 1 << 20, LOGITS_BYTES, LOGITS_BYTES + 1,
    )  # fmt: skip
    assert candidate_budgets(10, 0) == (1, 10)


@needs_compiler
def test_a_gpu_tries_each_and_keeps_none_of_their_memory():
    kernels = emulated()
    found = choose_budget(settings_of(), kernels)
    tried = candidate_budgets(WHOLE, kernels.cache_bytes)
    assert tuple(found.step_s) == tried == (4096, 8192, WHOLE)
    assert min(found.step_s.values()) > 0.0
    assert found.chosen_bytes == fastest(found.step_s)
    held_bytes = kernels._device.used_bytes  # what kernels keep for the next step
    choose_budget(settings_of(), kernels)
    assert kernels._device.used_bytes == held_bytes < WHOLE < kernels._device.peak_bytes


@needs_compiler
@pytest.mark.parametrize(("optimizer", "loss"), [("adam", "softmax"), ("sgd", "sigmoid")])
def test_a_worker_uses_the_chosen_budget(monkeypatch, optimizer, loss):
    monkeypatch.setitem(registry.KERNELS, "cuda", lambda threads, exact: emulated())
    monkeypatch.setattr("daskxml.worker.memory.fastest", lambda step_s: sorted(step_s)[1])
    spec = ModelSpec(features=60, labels=LABELS, hidden=(8,), loss=loss)
    worker = TrainingWorker(settings_of(spec=spec, optimizer=OptimizerConfig(name=optimizer)))
    assert worker.settings.logits_budget_bytes == worker.budget.chosen_bytes == 8192
    assert worker.replica._mlp.output.block_labels(ROWS, 4) == 8192 // (4 * ROWS)
    assert worker.memory.announce().endswith("; logits in blocks of 0.0 MiB")
    given = settings_of(spec=spec, logits_budget_bytes=8192)
    assert worker.memory.batch_rows == plan_memory(given, emulated(), ROWS).batch_rows


@needs_compiler
def test_what_leaves_no_room_for_the_rows_is_not_tried():
    settings = settings_of(rows=1000)
    blocks = plan_memory(settings_of(logits_budget_bytes=8192), emulated(), ROWS)
    rows_bytes = 2 * 1000 * (8 * settings.data.row_nonzeros + 64)
    kernels = emulated(budget_bytes=rows_bytes + blocks.total_bytes)
    assert tuple(choose_budget(settings, kernels).step_s) == (4096, 8192)
    least = plan_memory(settings_of(logits_budget_bytes=4096), emulated(), ROWS)
    small = emulated(budget_bytes=rows_bytes + least.total_bytes - 1)
    assert choose_budget(settings, small).chosen_bytes == 4096


@needs_compiler
def test_memory_that_is_not_there_after_all_is_no_end(monkeypatch):
    monkeypatch.setattr("daskxml.worker.memory._fits", lambda *asked: True)
    whole = plan_memory(settings_of(logits_budget_bytes=WHOLE), emulated(), ROWS)
    blocks = plan_memory(settings_of(logits_budget_bytes=8192), emulated(), ROWS)
    models = 3 * 4 * (60 * 8 + 8 + LABELS * 9)  # that a member has beside the replica's
    assert whole.total_bytes - blocks.total_bytes > 4000  # and the rows take less
    kernels = emulated(budget_bytes=whole.total_bytes - models)
    found = choose_budget(settings_of(), kernels)
    assert WHOLE not in found.step_s
    assert found.chosen_bytes in (4096, 8192)


@pytest.mark.parametrize(("written", "chosen"), [("auto", LOGITS_BYTES), ("3MiB", 3 << 20)])
def test_on_a_cpu_auto_is_a_fixed_size(written, chosen):
    config = load_run_config({"training": {"epochs": 1, "logits_budget": written}})
    spec = config.model_spec(60, LABELS)
    facts = DataFacts(spec=spec, rows=100, stream_rows=(100,), row_nonzeros=8)
    settings = WorkerSettings.of(config, facts, WorkerSlot())
    found = choose_budget(settings, get_kernels("cpu", 1))
    assert (found.chosen_bytes, found.step_s) == (chosen, {})


@needs_compiler
def test_a_run_tells_what_was_chosen(monkeypatch, tmp_path):
    """Through the single-process executor; its workers share the device, so one measures."""
    made = []

    def make(threads, exact):
        made.append(emulated())
        return made[-1]

    monkeypatch.setitem(registry.KERNELS, "cuda", make)
    part = generate(SyntheticSpec(rows=96, features=60, labels=LABELS, seed=4))[0]
    values = {
        "model": {"hidden": [8]}, "training": {"epochs": 1}, "checkpoint": {"every": 0},
        "strategy": {"name": "adaptive-sgd", "batch_max": ROWS, "megabatch_batches": 2},
        "cluster": {"device": "cuda"},
    }  # fmt: skip
    train = daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
    run = daskxml.simulate(values, speeds=[1.0, 0.5], train=train, out=tmp_path / "run")
    events = [event for row in run.history for event in row["events"]]
    (event,) = events
    assert (event["kind"], event["worker"]) == ("logits", "0")
    step_ms = {int(size): each for size, each in event["step_ms"].items()}
    assert sorted(step_ms) == [4096, 8192, WHOLE]
    assert event["budget_bytes"] in step_ms
    first = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[0])
    assert first["events"] == events
    assert len(made) == 2
