"""How much a batch's logits may take: all of them on a GPU, if there is room."""

import pytest

from daskxml.config import load_run_config
from daskxml.kernels import get_kernels, registry
from daskxml.models.network.spec import ModelSpec
from daskxml.optim import OptimizerConfig
from daskxml.worker import memory
from daskxml.worker.memory import choose_budget, plan_memory
from daskxml.worker.settings import LOGITS_BYTES, DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.training_worker import TrainingWorker
from harness.cuda_on_host import emulated, needs_compiler
from harness.worker_settings import make_settings

LABELS, ROWS = 200, 16
WHOLE = 4 * LABELS * ROWS


def settings_of(spec=None, **changes):
    spec = spec or ModelSpec(features=60, labels=LABELS, hidden=(8,))
    values = {"device": "cuda", "max_batch_rows": ROWS, "logits_budget_bytes": 0} | changes
    return make_settings(spec, **{"rows": 100} | values)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(memory, "_LEAST_LOGITS_BYTES", 1 << 10)


def kernels_with_room_for(budget_bytes, rows):
    settings = settings_of(rows=rows)
    plan = plan_memory(settings_of(logits_budget_bytes=budget_bytes), emulated(), ROWS)
    rows_bytes = 2 * rows * (8 * settings.data.row_nonzeros + 64)
    return emulated(budget_bytes=rows_bytes + plan.total_bytes)


@needs_compiler
@pytest.mark.usefixtures("small_blocks")
def test_a_gpu_has_all_logits_at_once_or_the_largest_part_that_leaves_room_for_the_rows():
    settings = settings_of(rows=1000)
    assert choose_budget(settings, emulated()) == WHOLE
    for part in (WHOLE, WHOLE // 2, WHOLE // 4):
        assert choose_budget(settings, kernels_with_room_for(part, 1000)) == part
    assert choose_budget(settings, emulated(budget_bytes=1)) <= 1 << 10


@needs_compiler
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("optimizer", "loss"), [("adam", "softmax"), ("sgd", "sigmoid")])
def test_a_worker_uses_the_chosen_budget(monkeypatch, optimizer, loss):
    monkeypatch.setitem(registry.KERNELS, "cuda", lambda threads, exact: emulated())
    monkeypatch.setattr(memory, "_fits", lambda settings, kernels, size: size < WHOLE)
    spec = ModelSpec(features=60, labels=LABELS, hidden=(8,), loss=loss)
    worker = TrainingWorker(settings_of(spec=spec, optimizer=OptimizerConfig(name=optimizer)))
    assert worker.settings.logits_budget_bytes == WHOLE // 2
    assert worker.replica._mlp.output.block_labels(ROWS, 4) == LABELS // 2
    assert worker.memory.announce().endswith("; logits in blocks of 0.0 MiB")
    given = settings_of(spec=spec, logits_budget_bytes=WHOLE // 2)
    assert worker.memory.batch_rows == plan_memory(given, emulated(), ROWS).batch_rows


@pytest.mark.parametrize(("written", "chosen"), [("auto", LOGITS_BYTES), ("3MiB", 3 << 20)])
def test_on_a_cpu_auto_is_a_fixed_size(written, chosen):
    config = load_run_config({"training": {"epochs": 1, "logits_budget": written}})
    spec = config.model_spec(60, LABELS)
    facts = DataFacts(spec=spec, rows=100, stream_rows=(100,), row_nonzeros=8)
    settings = WorkerSettings.of(config, facts, WorkerSlot())
    assert choose_budget(settings, get_kernels("cpu", 1)) == chosen
