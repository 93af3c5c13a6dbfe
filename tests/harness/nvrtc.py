"""NVIDIA's compiler in memory, called as CuPy calls it; it needs no driver."""

import ctypes
import importlib.util
from functools import cache
from pathlib import Path


@cache
def _library():
    """The one that a package brings; None where none does."""
    found = importlib.util.find_spec("nvidia")
    folders = found.submodule_search_locations if found else ()
    paths = [path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*")]
    return ctypes.CDLL(str(paths[0])) if paths else None


def is_there():
    """Whether it is installed."""
    return _library() is not None


def build(source, *options):
    """Return what the compiler made, its log, or raise with it.

    For ``sm_90`` that is machine code, for ``compute_90`` text.
    """
    program, kind = ctypes.c_void_p(), "PTX" if "=compute_" in options[0] else "CUBIN"
    made = ctypes.byref(program)
    _call("nvrtcCreateProgram", made, source.encode(), b"daskxml.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        status = _library().nvrtcCompileProgram(program, len(options), given)
        log = _bytes_of(program, "nvrtcGetProgramLog").decode().rstrip("\0")
        if status:
            raise ValueError(log)
        return _bytes_of(program, f"nvrtcGet{kind}"), log
    finally:
        _call("nvrtcDestroyProgram", made)


def _bytes_of(program, name):
    size = ctypes.c_size_t()
    _call(f"{name}Size", program, ctypes.byref(size))
    held = ctypes.create_string_buffer(size.value)
    _call(name, program, held)
    return held.raw


def _call(name, *arguments):
    status = getattr(_library(), name)(*arguments)
    assert status == 0, f"{name}: status {status}"
