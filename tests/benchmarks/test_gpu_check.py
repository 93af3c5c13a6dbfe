"""The check for a GPU, where there is none: on the kernels' sources, compiled for the host."""

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import check
import device
import steps
from daskxml.kernels import get_kernels, registry
from harness.cuda_on_host import NO_GPU, emulated, needs_compiler
from steps import SHAPES, Floor, Shape, floor_of

CHECK = Path(check.__file__)
SMALL = Shape(name="small", features=300, labels=120, row_features=12, row_labels=3, hidden=16)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_torch_does_the_same_steps(optimizer):
    torch = pytest.importorskip("torch")
    common = SMALL, 16, optimizer
    ours = steps.OurSteps(get_kernels("cpu", 1), *common, 1 << 20, 3)
    theirs = steps.torch_steps(torch, "cpu", *common, False, 3)
    for count in (1, 4):
        assert ours(count) == pytest.approx(theirs(count), rel=1e-4)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "error"), [("float16", 0.001)])
def test_steps_with_a_narrow_output_layer(dtype, error):
    common = SMALL, 16, "sgd", 1 << 20, 3
    wide = steps.OurSteps(emulated(), *common)
    narrow = steps.OurSteps(emulated(), *common, output_dtype=dtype)
    assert narrow(3) == pytest.approx(wide(3), rel=error)


class HostGpu:
    """In the place of `device.Gpu`: the kernels' sources on the host."""

    torch_device, compiles = "cpu", (False,)

    def __init__(self, torch=None, budget_bytes=0):
        self.torch, self._budget_bytes = torch, budget_bytes

    def kernels(self, exact=False):
        return emulated(budget_bytes=self._budget_bytes)

    def reset_memory(self):
        pass

    def peak_bytes(self, of_torch):
        return 1 << 20

    def ceilings(self):
        return {"bytes_s": 1e12, "operations_s": 1e13}

    def describe(self):
        return device.software()


@pytest.mark.slow
@needs_compiler
def test_all_of_it_goes_through(monkeypatch, capsys):
    """The real run has no second try: every part, on sizes that the host can do."""
    monkeypatch.setitem(registry.KERNELS, "cuda", lambda threads, exact: emulated())
    monkeypatch.setattr(check, "RUN_ROWS", 256)
    work = check.Work(
        steps=((SMALL, 8, "sgd"),),
        round_s=0.001,
        runs=(("sgd", "softmax", 3.25), ("adam", "softmax", 3.3)),
        epochs=2,
        curve={"rows": 256, "features": 100, "labels": 30},
    )
    torch = importlib.import_module("torch") if find_spec("torch") else None
    (*_, found) = check.run_parts(HostGpu(torch), work, "bc", 3)
    json.dumps(found)
    assert check.status_of(found) == 0, found
    assert len(found["training"]) == 2
    assert all(row["ok"] for row in found["training"])
    steps = found["steps"]
    assert [row for row in steps if "failed" in row] == []
    names = ["ours, logits in 0 MiB", "ours, float16"]
    names += ["torch eager", "torch eager, autocast bfloat16"] if torch else []
    assert [row["who"] for row in steps] == names
    assert [row["ok"] for row in steps] == [True] * len(steps)
    ours = [row for row in steps if "queued" in row]
    # where the rows are; features and labels; the captured step; its loss
    assert [row["queued"] for row in ours] == [5, 5]
    assert all(row["queue_ms"] > 0.0 for row in ours)
    told = capsys.readouterr().out
    assert told.count("queue_ms") == 2


@needs_compiler
def test_a_table_of_steps_says_what_failed_and_what_was_left_out():
    ceilings = HostGpu().ceilings()
    (broken, *_) = steps.measure_shape(
        HostGpu(budget_bytes=10), (SMALL, 16, "sgd"), (1,), ceilings, 0, 0.001
    )
    assert broken["failed"].startswith("MemoryError")
    work = check.Work(steps=((SMALL, 16, "sgd"),), left_s=0.0)
    (row,) = check.part_b(HostGpu(), work, ceilings, 0, 0.0)
    assert row["who"] == "left out: no time"


@needs_compiler
def test_ceilings_are_measured():
    kernels = emulated()
    assert device._copied_bytes_s(kernels, 1000) > 0.0
    assert device._operations_s(kernels, 16) > 0.0


def test_the_floor_of_a_step():
    tiny = Shape(name="t", features=1000, labels=10, row_features=3, row_labels=2, hidden=4)
    floor = floor_of(tiny, 5)
    assert floor.operations == 6 * 5 * 10 * 4 + 4 * 15 * 4
    assert floor.moved_bytes == 3 * 4 * (10 * 4 + 15 * 4) + 2 * 8 * 15 + 4 * 5 * 2
    assert floor_of(tiny, 5, moments=2).moved_bytes - floor.moved_bytes == 4 * 4 * (40 + 60)
    assert Floor(moved_bytes=10.0, operations=1.0).least_s(5.0, 1.0) == 2.0
    floor = floor_of(SHAPES[0], 4096)
    assert floor.least_s(4e12, 4e14) == pytest.approx(floor.operations / 4e14)


def test_it_loads_without_numba_and_dask():
    code = (
        "import importlib.util, sys\n"
        "BLOCKED = {'numba', 'llvmlite', 'dask', 'distributed', 'tornado', 'bokeh', 'rich',\n"
        "           'fsspec', 'tomli_w', 'safetensors', 'threadpoolctl'}\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in BLOCKED:\n"
        "            raise ImportError(name + ' is blocked')\n"
        "sys.meta_path.insert(0, Blocker())\n"
        f"sys.path.insert(0, {str(CHECK.parent)!r})\n"
        "import check\n"
        "from daskxml.kernels.cuda import kernels as cuda_kernels\n"
        "sizes = {'rows': 64, 'features': 20, 'labels': 5}\n"
        "rows = check.part_c(check.cpu_kernels(), check.Work(epochs=1, curve=sizes))\n"
        "print(check.cpu_kernels().name, len(rows))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["naive", "3"]


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_without_a_gpu_it_is_said_in_one_line():
    done = subprocess.run([sys.executable, CHECK], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no check: ")
    assert done.stderr.count("\n") == 1
