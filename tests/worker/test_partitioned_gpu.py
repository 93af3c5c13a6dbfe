"""Parts of the labels on GPUs against one worker on a CPU: kernels on the host, or on a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_partitioned import gang, hold, make_parts, one_worker, settings_for, whole

from daskxml.collectives.messages import run_together
from daskxml.session.commands import Evaluate
from daskxml.strategies.protocol import Partitioned
from daskxml.worker import run_worker
from daskxml.worker.partitioned_programs import evaluate_together
from daskxml.worker.partitioned_worker import PartitionedWorker
from harness.cuda_on_host import emulated, gpu_kernels, needs_compiler, needs_gpu
from harness.gangs import SPEC, make_gang, merge, run_gang

pytestmark = pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(emulated, id="host", marks=needs_compiler),
        pytest.param(gpu_kernels, id="cuda", marks=needs_gpu),
    ],
)


def gpu_parts(monkeypatch, kernels, count, spec, **changes):
    """Return workers whose kernels are a GPU's."""
    with monkeypatch.context() as patch:
        patch.setattr(run_worker, "get_kernels", lambda *args: kernels())
        made = [PartitionedWorker(settings_for(spec, **changes)) for _ in range(count)]
    for worker in made:
        assert worker.kernels.name == "cuda"
        worker.initialize()
        hold(worker)
    return made


@pytest.mark.parametrize(
    ("loss", "optimizer", "budget"),
    [("softmax", "adam", 1 << 20), ("softmax", "sgd", 4000), ("sigmoid", "lamb", 1 << 20)],
)
def test_parts_on_gpus_and_cpus_step_as_one_worker_does(
    monkeypatch, kernels, loss, optimizer, budget
):
    spec, given = replace(SPEC, loss=loss), {"optimizer": optimizer, "budget": budget}
    group = [*gpu_parts(monkeypatch, kernels, 2, spec, **given), *make_parts(1, spec, **given)]
    gangs = [gang(steps=2), gang((1, 2, 3), first=60, steps=2)]
    for generation, each in enumerate(gangs, start=1):
        run_gang(group, each)
        merge(group, [1.0, 0.0, 0.0], generation=generation)
    alone = one_worker(spec, gangs, **given)
    np.testing.assert_allclose(whole(group), alone.replica.flat, rtol=0, atol=1e-5)
    command = Evaluate(1, "a", ((0, 0, 30),))
    programs = [evaluate_together(it, command, rank, 3, 0) for rank, it in enumerate(group)]
    expected = alone.evaluate(((0, 0, 30),), {}).result()
    assert run_together(programs)[0].result()["P@3"] == pytest.approx(expected["P@3"])


def test_a_gpus_part_outlives_the_loss_of_its_worker(monkeypatch, kernels):
    group = gpu_parts(monkeypatch, kernels, 3, SPEC, optimizer="adam")
    run_gang(group, gang(steps=2))
    merge(group, [1.0, 0.0, 0.0])
    run_gang(group, gang(first=60, steps=1))  # lost with the worker in the middle
    left = [group[0], group[2]]
    again = make_gang(Partitioned((2, 3)), [10, 20], [5, 10], lrs=[0.1] * 2, first=60, rewinds=True)
    run_gang(left, again)
    merge(left, [1.0, 0.0], generation=2)
    expected = one_worker(SPEC, [gang(steps=2), again], optimizer="adam").replica.flat
    np.testing.assert_allclose(whole(left), expected, rtol=0, atol=1e-5)
    assert group[0].warm_up() == 0.0
