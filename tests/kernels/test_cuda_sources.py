"""The CUDA sources through NVIDIA's own compiler, down to the machine code of three GPUs."""

import re

import pytest

import harness.nvrtc as nvrtc
from daskxml.kernels.cuda.device import FUSED, cuda_source, kernel_names

pytestmark = [
    pytest.mark.skipif(not nvrtc.is_there(), reason="NVRTC is not installed"),
    pytest.mark.slow,
]
CAPABILITIES = 70, 80, 90
AS_CUPY = "--std=c++17", "-ftz=true"
BOUNDED = ("fit_nodes",)  # of launch bounds of their own
_USED = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers",
    re.DOTALL,
)


@pytest.fixture(scope="module", params=CAPABILITIES)
def built(request):
    options = f"--gpu-architecture=sm_{request.param}", *AS_CUPY, "--ptxas-options=-v"
    return nvrtc.build(cuda_source(), *options)


def test_every_kernel_is_there(built):
    code, _ = built
    for name in kernel_names(cuda_source()):
        assert b".text." + name.encode() + b"\0" in code


def test_no_kernel_spills_its_registers(built):
    """What does not fit into registers goes through memory, which is what kernels wait for."""
    _, log = built
    used = {name: tuple(map(int, numbers)) for name, *numbers in _USED.findall(log)}
    assert set(used) == set(kernel_names(cuda_source()))
    assert {name: has for name, has in used.items() if any(has[:3])} == {}
    bounded = {name: used.pop(name) for name in BOUNDED}  # 640 threads of a processor
    assert max(registers for *_, registers in bounded.values()) <= 96
    assert max(registers for *_, registers in used.values()) <= 64  # 1,024 of them


def test_the_fused_kernels_share_a_multiprocessor():
    """What `BOUNDS` asks for; nothing goes through memory."""
    options = "--gpu-architecture=sm_90a", *AS_CUPY, "--ptxas-options=-v"
    code, log = nvrtc.build(cuda_source(FUSED), *options)
    used = {name: tuple(map(int, numbers)) for name, *numbers in _USED.findall(log)}
    assert set(used) == set(kernel_names(cuda_source(FUSED)))
    assert all(b".text." + name.encode() + b"\0" in code for name in used)
    assert {name: has for name, has in used.items() if any(has[:3])} == {}
    assert max(registers for *_, registers in used.values()) <= 65536 // (3 * 128)


def test_what_is_wrong_is_refused():
    with pytest.raises(ValueError, match="undefined_name"):
        nvrtc.build("__global__ void f() { undefined_name; }", "--gpu-architecture=sm_90")


def test_text_is_had_as_well():
    """What CuPy asks for where the driver is older than the compiler."""
    code, _ = nvrtc.build(cuda_source(), "--gpu-architecture=compute_70", *AS_CUPY)
    for name in kernel_names(cuda_source()):
        assert f".entry {name}(".encode() in code
