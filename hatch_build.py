"""Hatch's hook: a wheel has the kernels as well, compiled for the processor that builds it.

So `pip install` of a checkout compiles them, and no user waits for that. On another processor, or
with another Numba, they are compiled at their first use, as after an installation of a wheel
without them: `DASKXML_KERNELS=0` builds one, which then is the same on every machine. What is
compiled is what `daskxml inspect` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WANTED = os.environ.get("DASKXML_KERNELS") != "0"


class KernelsHook(BuildHookInterface):  # type: ignore[misc]
    """Adds the kernels to a wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what must be installed to compile them: what daskxml needs, but for tables."""
        needed = self.metadata.core.dependencies if WANTED else []
        return [each for each in needed if not each.startswith("pyarrow")]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels in a copy, and add what is in its caches."""
        self.copy = copy = Path(tempfile.mkdtemp(prefix="daskxml-kernels-"))
        if not WANTED or version == "editable":
            return
        for name in ("daskxml", "pipelines", "datasets"):
            skipped = shutil.ignore_patterns("__pycache__")  # with kernels of before
            shutil.copytree(Path(self.root, name), copy / name, ignore=skipped)
        path = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])  # pip sets it
        settings = {"PYTHONPATH": path, "NUMBA_CACHE_DIR": ""}
        command = [sys.executable, "-m", "daskxml", "inspect"]
        subprocess.run(command, cwd=copy, env=os.environ | settings, stdout=subprocess.DEVNULL)
        kernels = [*copy.glob("daskxml/**/__pycache__/*.nb?")]
        for kernel in kernels:
            build_data["force_include"][str(kernel)] = str(kernel.relative_to(copy))
        tell = self.app.display_info if kernels else self.app.display_warning
        tell(f"compiled kernels: {len(kernels)} files")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy, when the wheel has been written."""
        shutil.rmtree(self.copy)
