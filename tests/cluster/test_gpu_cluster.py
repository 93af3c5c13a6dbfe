"""Workers with a GPU in a real cluster of processes: their kernels' sources run on the host."""

from pathlib import Path

import pytest

import daskxml
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from harness.clusters import local_client
from harness.cuda_on_host import build, needs_compiler

LABELS, BATCH_ROWS = 200, 16
AS_GPUS = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import harness.cuda_on_host as cuda_on_host
cuda_on_host.BUILT = BUILT
from daskxml.core import hardware
from daskxml.core.hardware import Gpu
from daskxml.kernels import registry
gpu = Gpu(index=0, uuid=f"GPU-{{os.getpid()}}", name="host", memory_bytes=1 << 30, driver="0")
registry.KERNELS["cuda"] = lambda threads, exact: cuda_on_host.emulated()
hardware.usable_gpus, hardware.cuda_problem = lambda: (gpu,), lambda driver, cupy: ""
"""


@pytest.fixture
def client(tmp_path):
    preload = tmp_path / "as_gpus.py"
    preload.write_text(f"BUILT = {build()!r}\n{AS_GPUS}")
    with local_client(2, tmp_path / "dask", preload=[str(preload)]) as connected:
        yield connected


HALVES = {"model": {"hidden": [64]}, "gpu": {"output_dtype": "float16"}}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("more", [{}, HALVES], ids=["float32", "float16"])
def test_workers_with_a_gpu_train_and_tell_what_they_need(client, more):
    part = generate(SyntheticSpec(rows=96, features=60, labels=LABELS, seed=4))[0]
    train = daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
    values = {
        "model": {"hidden": [8]}, "training": {"epochs": 2}, "checkpoint": {"every": 0},
        "strategy": {"batch_max": BATCH_ROWS, "megabatch_batches": 3, "lr": 0.5}, **more,
    }  # fmt: skip
    told = []
    run = daskxml.train(values, client=client, train=train, on_event=told.append)
    plans = [event["text"] for event in told if event["kind"] == "memory"]
    assert all(text.startswith("each worker on cuda needs") for text in plans)
    assert 1 <= len(plans) <= 2
    assert run.history[-1]["loss"] < run.history[0]["loss"]
