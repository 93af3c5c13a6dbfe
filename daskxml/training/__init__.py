"""Training: the replica of a worker and the records of a run."""
