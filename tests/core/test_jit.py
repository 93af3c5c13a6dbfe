"""Kernels of the cache load without what only a compiler needs."""

import subprocess
import sys

import numpy as np

import daskxml

TRAINING = """
run = daskxml.train("tree", train=(np.eye(40), np.eye(40)), overrides=["cluster.device=cpu"])
run.model.predict(np.eye(40))
"""
SCRIPT = f"""
import sys
import numpy as np
import daskxml
{TRAINING}
print("numba.np.linalg" in sys.modules)
"""


def test_a_training_with_a_warm_cache_does_not_load_the_compiler():
    exec(TRAINING, {"daskxml": daskxml, "np": np})  # may compile
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
