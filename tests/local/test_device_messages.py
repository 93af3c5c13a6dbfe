"""Simulated workers on a GPU exchange device arrays, which NumPy must not read."""

import numpy as np

from daskxml.collectives.ring import all_reduce
from daskxml.local.clock import run_programs
from daskxml.local.cost import Network
from harness.cuda_on_host import DeviceArray, emulated, needs_compiler

NETWORK = Network(bandwidth_bytes_s=1e9, latency_s=1e-6)


@needs_compiler
def test_replicas_on_devices_are_merged():
    kernels = emulated()
    terms = [kernels.to_device(np.full(5, value, np.float32)) for value in (1.0, 3.0)]
    outs = [kernels.zeros(5) for _ in terms]
    assert isinstance(outs[0], DeviceArray)
    run_programs(
        [all_reduce(rank, 2, outs[rank], terms[rank], 0.5, kernels) for rank in (0, 1)],
        lambda rank, worked: 0.0,
        NETWORK,
    )
    for out in outs:
        np.testing.assert_array_equal(kernels.to_host(out), np.full(5, 2.0, np.float32))
