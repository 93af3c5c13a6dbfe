"""A real cluster of processes."""

from harness.cluster_fixtures import cluster as cluster
