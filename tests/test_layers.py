"""Imports go one way, and what must not be loaded is not."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import daskxml

PACKAGE = Path(daskxml.__file__).parent
# From the ground up; each imports only what stands before it. `_version` is on the ground as well.
ROOMS = (
    "core", "data", "kernels", "collectives", "strategies", "metrics", "optim", "models",
    "config", "session", "records", "worker", "transport", "cluster", "local", "observe",
    "api", "cli", "__main__",
)  # fmt: skip
RANK = {room: rank for rank, room in enumerate(ROOMS)} | {"_version": 0}
DASK = {"dask", "distributed", "tornado", "bokeh"}
MAY_IMPORT_DASK = ("transport/", "cluster/", "observe/dashboard/", "api/")
MAY_IMPORT_CUPY = ("kernels/cuda/cupy",)
CUPY = {"cupy", "cupyx", "cupy_backends"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def name_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree, *, everywhere):
    """Yield the full names that a module imports when it is loaded, or anywhere in it."""
    pending = list(ast.iter_child_nodes(tree))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.expr):
            continue  # in no expression anything is imported
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if everywhere or not (is_function or is_typing):
            pending.extend(ast.iter_child_nodes(node))


def own(names):
    """Return the rooms among imported names."""
    return {name.split(".")[1] for name in names if name.startswith("daskxml.")}


def test_imports_go_downwards():
    assert {name_of(path).split(".")[0] for path in MODULES} <= {*RANK}, "say in ROOMS where"
    upwards = [
        f"{name_of(path)} imports {other}, which lies above"
        for path in MODULES
        for other in own(imports(tree_of(path), everywhere=True))
        if RANK[other] > RANK[name_of(path).split(".")[0]]
    ]
    assert upwards == []


def test_dask_and_cupy_stay_in_their_rooms():
    astray = []
    for path in MODULES:
        place = path.relative_to(PACKAGE).as_posix()
        loaded = {name.split(".")[0] for name in imports(tree_of(path), everywhere=True)}
        if loaded & DASK and not place.startswith(MAY_IMPORT_DASK):
            astray.append(f"{place} imports {loaded & DASK}")
        if loaded & CUPY and not place.startswith(MAY_IMPORT_CUPY):
            astray.append(f"{place} imports {loaded & CUPY}")
    assert astray == []


def test_a_model_answers_without_dask(tmp_path):
    code = """
import sys
import numpy as np
import daskxml
from daskxml.models.network.spec import ModelSpec
from daskxml.models.store import ModelHeader
arrays = {"output.weight": np.eye(2, dtype=np.float32), "output.bias": np.zeros(2, np.float32)}
header = ModelHeader(spec=ModelSpec(features=2, labels=2, hidden=()), training_rows=1)
daskxml.Model(header, arrays, np.ones(2, np.int64)).save(sys.argv[1])
assert daskxml.load(sys.argv[1]).predict_labels([[0.0, 1.0]], k=1) == [[1]]
print(sorted(set(sys.modules) & {"dask", "distributed", "cupy", "sklearn"}))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_loads_neither_dask_nor_cupy_nor_scikit_learn():
    code = (
        "import sys, daskxml; "
        "print(sorted(set(sys.modules) & {'dask', 'distributed', 'cupy', 'sklearn', 'numba'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
