"""Are the GPU's kernels right, how fast are they, and does a run learn what a CPU's does?

    python benchmarks/gpu/check.py

One data-centre GPU, under 8 minutes, and nothing but CuPy, NumPy, SciPy and PyTorch. Prints three
tables and writes ``benchmarks/results/gpu_check.json``. The exit status is 0 if every kernel and
every curve is right, 1 if not, 2 without a GPU. Speed decides nothing; targets are printed beside
what was measured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE)]

from learning import compare_curves, simulated_run, train_curve  # noqa: E402
from machine import align, read_commit, read_field  # noqa: E402
from roofline import SHAPES  # noqa: E402
from step_times import measure_shape  # noqa: E402
from twin_operands import Sizes  # noqa: E402
from twins import check_kernels  # noqa: E402

from daskxml.errors import ConfigError  # noqa: E402
from daskxml.ops import get_kernels  # noqa: E402
from daskxml.ops.naive import NaiveKernels  # noqa: E402

MIB = 1 << 20
TF32, FLOAT32 = 1e-3, 1e-5  # what a product's relative error may be
RUNS = (("sgd", "softmax", 3.0), ("adam", "softmax", 1.0), ("sgd", "sigmoid", 5.0))  # to this loss
RUN_GOAL = 0.1
LEFT_S = 420.0  # of the 8 minutes, after which no further shape is begun


def cpu_kernels() -> Any:
    """Numba's where that is installed, else plain NumPy."""
    try:
        return get_kernels("cpu", 1)
    except ImportError:
        return NaiveKernels()


def part_a(open_kernels: Any, sizes: Sizes, seed: int) -> list[dict[str, Any]]:
    """Every kernel, exact and with TF32."""
    rows = []
    for exact, tolerance in ((True, FLOAT32), (False, TF32)):
        kernels = open_kernels(exact)
        found = check_kernels(kernels, seed, sizes, tolerance)
        rows += [{"products": "float32" if exact else "TF32", **row} for row in found]
        kernels.close()
    return rows


def part_b(open_kernels: Any, memory: Any, torch: Any, ceilings: dict[str, float], seed: int,
           begun_s: float) -> list[dict[str, Any]]:  # fmt: skip
    """Steps at both shapes; Amazon-670k with several budgets for logits, and with Adam."""
    budgets = (32 * MIB, 256 * MIB, 3072 * MIB)
    plan = [(SHAPES[0], 1024, "sgd", budgets), (SHAPES[0], 4096, "sgd", budgets[:2]),
            (SHAPES[0], 1024, "adam", budgets[1:2]), (SHAPES[1], 1024, "sgd", budgets[1:2]),
            (SHAPES[1], 4096, "sgd", budgets[1:2])]  # fmt: skip
    rows: list[dict[str, Any]] = []
    for shape, batch_rows, optimizer, tried in plan:
        if time.perf_counter() - begun_s > LEFT_S:
            rows.append({"shape": shape.name, "batch": batch_rows, "optimizer": optimizer,
                         "who": "left out: no time"})  # fmt: skip
            continue
        rows += measure_shape(lambda: open_kernels(False), memory, torch, shape, batch_rows,
                              optimizer, tried, ceilings, seed)  # fmt: skip
    return rows


def part_c(kernels: Any, epochs: int, **sizes: int) -> list[dict[str, Any]]:
    """Curves of a replica on the device and on a CPU, and of a run where that is installed."""
    rows = []
    for optimizer, loss, goal in RUNS:
        ours, cpu = (
            train_curve(each, optimizer, loss, epochs, **sizes) for each in (kernels, cpu_kernels())
        )
        rows.append({"run": f"one replica, {optimizer}, {loss}", **compare_curves(ours, cpu, goal)})
    try:
        ours, cpu = (simulated_run(device, epochs) for device in ("cuda", "cpu"))
        rows.append({"run": "single-process executor", **compare_curves(ours, cpu, RUN_GOAL)})
    except ImportError as error:
        rows.append({"run": f"single-process executor: left out ({error})"})
    return rows


class GpuMemory:
    """Peaks of CuPy's pool and of PyTorch's."""

    def __init__(self, cupy: Any, torch: Any) -> None:
        self._pool, self._torch = cupy.get_default_memory_pool(), torch

    def reset(self) -> None:
        """Begin anew."""
        self._pool.free_all_blocks()
        if self._torch is not None:
            self._torch.cuda.empty_cache()
            self._torch.cuda.reset_peak_memory_stats()

    def ours(self) -> int:
        """The pool keeps what it has ever had since it was emptied."""
        return int(self._pool.total_bytes())

    def torch(self) -> int:
        """What PyTorch's allocator has had at most."""
        return int(self._torch.cuda.max_memory_reserved())


def measure_ceilings(cupy: Any, kernels: Any) -> dict[str, float]:
    """Bytes a second of a copy of 2 GiB (read and written), operations a second of a product."""
    x, y = kernels.zeros(1 << 29), kernels.zeros(1 << 29)
    side = 8192
    rng = cupy.random.default_rng(0)
    a, b = (rng.standard_normal((side, side), dtype=cupy.float32) for _ in range(2))
    out = kernels.empty((side, side))
    cupy.cuda.Device().synchronize()
    copied_s = _seconds(cupy, lambda: kernels.copy(y, x))
    multiplied_s = _seconds(cupy, lambda: kernels.gemm(out, a, b))
    return {"bytes_s": 2 * x.nbytes / copied_s, "operations_s": 2.0 * side**3 / multiplied_s}


def _seconds(cupy: Any, work: Any) -> float:
    for _ in range(3):
        work()
    cupy.cuda.Device().synchronize()
    begun_s = time.perf_counter()
    for _ in range(10):
        work()
    cupy.cuda.Device().synchronize()
    return (time.perf_counter() - begun_s) / 10


def describe_gpu(cupy: Any) -> dict[str, Any]:
    """The GPU, its driver, and the versions of what was used."""
    about, runtime = cupy.cuda.runtime.getDeviceProperties(0), cupy.cuda.runtime
    packages = ("cupy-cuda12x", "cupy-cuda13x", "numpy", "scipy", "torch", "numba", "dask")
    return {
        "gpu": about["name"].decode(), "memory_GiB": round(about["totalGlobalMem"] / 2**30, 1),
        "capability": f"{about['major']}.{about['minor']}", "l2_MiB": about["l2CacheSize"] / MIB,
        "cuda_of_driver": runtime.driverGetVersion(), "cuda_runtime": runtime.runtimeGetVersion(),
        "driver": read_field("/proc/driver/nvidia/version", "NVRM version"),
        "cpu": read_field("/proc/cpuinfo", "model name"), "python": sys.version.split()[0],
        "packages": {name: version for name in packages if (version := _version(name))},
        "commit": read_commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--parts", default="abc", help="which of a, b and c")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the operands")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "gpu_check.json")
    return parser.parse_args()


def run_parts(parts: str, seed: int) -> dict[str, Any]:
    """Run the parts on the GPU, and print each as it is done."""
    import cupy

    try:
        import torch
    except ImportError:
        torch = None
    begun_s = time.perf_counter()
    found: dict[str, Any] = {"benchmark": "gpu_check", "seed": seed, "machine": describe_gpu(cupy)}

    def open_kernels(exact: bool) -> Any:
        return get_kernels("cuda", 1, exact)

    if "a" in parts:
        found["kernels"] = show(part_a(open_kernels, Sizes(), seed))
    if "c" in parts:
        found["training"] = show(part_c(open_kernels(False), epochs=6))
    if "b" in parts:
        ceilings = found["ceilings"] = measure_ceilings(cupy, open_kernels(False))
        show([ceilings])
        memory = GpuMemory(cupy, torch)
        found["steps"] = show(part_b(open_kernels, memory, torch, ceilings, seed, begun_s))
    found["took_s"] = time.perf_counter() - begun_s
    return found


def show(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print a table, and give it back."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    print("\n".join(align([{name: row.get(name) for name in names} for row in rows])), flush=True)
    return rows


def main() -> int:
    asked = arguments()
    try:
        get_kernels("cuda", 1).close()
    except ConfigError as error:
        print(f"no check: {error}", file=sys.stderr)
        return 2
    found = run_parts(asked.parts, asked.seed)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=2) + "\n")
    checked = [*found.get("kernels", []), *found.get("training", [])]
    return 0 if all(row.get("ok", True) for row in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
