"""Dask: a run lives in the scheduler, its replicas in the workers."""
