"""A real cluster of processes, and a run file for it."""

from harness.cluster_fixtures import client as client
from harness.cluster_fixtures import cluster as cluster
from harness.cluster_fixtures import cluster_of_one as cluster_of_one
from harness.cluster_fixtures import patched as patched
from harness.cluster_fixtures import single as single
from harness.cluster_fixtures import stop_once_joined as stop_once_joined
from harness.cluster_fixtures import values as values
from harness.small_data import data as data
