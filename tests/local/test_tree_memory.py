"""What label trees take of memory: told before, kept to, and rows on disk where they are many."""

import json
import resource
import subprocess
import sys

import numpy as np
import pytest

from daskxml.config import load_run_config
from daskxml.core.errors import TrainingError
from daskxml.data.rows import concatenate, empty_array, is_on_disk, take_rows, to_scipy
from daskxml.local.fit_run import prepare
from daskxml.local.rows import read_rows
from daskxml.models.fitting import FitSettings, Slot
from daskxml.models.trees.fitting import TreeFitter
from daskxml.models.trees.nodes import Room
from daskxml.session.row_loading import GivenRows, TasksHere, load_partitions, run_here

# Many short rows in one node, so that its dual variables take most of the memory.
SCRIPT = """
import json, sys, threading, time, zlib
import numpy as np
from daskxml import Matrices
from daskxml.api.in_process import train_here
from daskxml.core.hardware import memory_bytes

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)

rng = np.random.default_rng(0)
rows = lambda count: Matrices(rng.random((count, 6)), np.eye(300)[rng.integers(0, 300, count)] > 0)
fixed = {"model.cost": 0.5, "model.passes": 1, "model.value_power": 1.0, "cluster.threads": 1}
train_here("tree", train=rows(50), overrides=fixed)  # compiles
data, peak, said = rows(60_000), [0], []
limit = anonymous() + (int(sys.argv[1]) << 20)
given = {"cluster.memory_limit": limit / memory_bytes()} if sys.argv[1] != "0" else {}
threading.Thread(target=watch, daemon=True).start()
run = train_here("tree", train=data, overrides=fixed | given)
arrays = sorted(run.model.parameters.items())
print(json.dumps([peak[0] - limit, zlib.crc32(b"".join(a.tobytes() for _, a in arrays))]))
"""


def trained(room_mib: int) -> list[int]:
    """Return the peak above the limit, in bytes, and a sum of the model's bits."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(room_mib)], capture_output=True, text=True, check=True
    )
    return [int(each) for each in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.slow
def test_a_tree_keeps_to_its_memory_and_stays_the_same() -> None:
    above, bits = trained(0)
    assert above > 24 << 20
    below, same = trained(32)
    assert below <= 0
    assert same == bits


def test_pieces_of_one_plan_need_no_other(data) -> None:
    """A plan depends on free memory: what Dask computes again after a loss must not."""
    config = load_run_config("tree", {"data.train": [str(data["train"])], "model.cost": 0.5})
    rows = read_rows(config, 1)
    spec, vectors = prepare(rows, config)
    settings = FitSettings(spec, rows.train.parts[0].rows, config)
    part, counts = rows.train.parts[0], rows.label_counts
    trees = []
    for nbytes in (2.0**62, 2.0**18):
        fitter = TreeFitter(settings, Slot())
        fitter.room = lambda part, nbytes=nbytes: Room(nbytes, part.features.columns, 5.0)
        order = fitter.order(vectors, 0)
        plan = fitter.plan(part, counts, order, 2, False)
        elsewhere = TreeFitter(settings, Slot())
        pieces = [elsewhere.fit(part, counts, order, 0, piece) for piece in plan.pieces]
        again = elsewhere.order(vectors, 0)
        trees.append((len(plan.pieces), elsewhere.put_together(again, plan, pieces)))
    (few, whole), (many, cut) = trees
    assert few < many
    assert all(np.array_equal(whole[name], cut[name]) for name in whole)


def test_what_cannot_fit_is_one_line() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        trained(1)
    line = caught.value.stderr.strip().splitlines()[-1]
    assert TrainingError.__name__ in line
    assert "raise [cluster] memory_limit or take fewer [cluster] threads" in line


def test_a_disk_that_is_full_is_one_line() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(TrainingError, match=r"no room in [^\n]* set TMPDIR to another folder$"):
            empty_array(10_000, np.float32, in_file=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_rows_beyond_a_quarter_of_the_memory_are_read_from_disk(data, validation: float) -> None:
    given = {"data.validation": validation, "data.train": [str(data["train"])]}
    config = load_run_config("tree", given)
    loaded = [
        run_here(load_partitions(tasks, config, "", 1, GivenRows(), None))
        for tasks in (TasksHere(), TasksHere(memory_bytes=0))
    ]
    parts = (each.train.parts + each.test.parts for each in loaded)
    for here, there in zip(*parts, strict=True):
        assert (is_on_disk(here.features), is_on_disk(there.features)) == (False, True)
        assert is_on_disk(take_rows(there, np.arange(3)).labels)
        assert is_on_disk(concatenate([here, there]).features)
        assert (to_scipy(here.features) != to_scipy(there.features)).nnz == 0
        assert (to_scipy(here.labels) != to_scipy(there.labels)).nnz == 0
