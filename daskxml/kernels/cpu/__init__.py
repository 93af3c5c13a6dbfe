"""Kernels on CPUs: NumPy, Numba and BLAS."""
