"""Kernels on GPUs: CUDA sources, compiled at run time and launched through CuPy."""
