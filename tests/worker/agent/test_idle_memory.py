"""Modules that a worker without data does not load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.processes
def test_a_worker_without_data_loads_no_numpy(tmp_path: Path) -> None:
    """NumPy takes 12 MB, in each of a pod's two containers."""
    program = (
        "import importlib, sys\n"
        "from cerebro.runtime.volumes import Volumes\n"
        "from cerebro.worker.agent.__main__ import replicas\n"
        "for name in ('etl_worker', 'model_hopper', 'trial_runner', 'cerebro.worker.searches'):\n"
        "    importlib.import_module(name)\n"
        f"assert replicas(Volumes.from_environment({{'CEREBRO_VOLUMES': {str(tmp_path)!r}}})) == ()\n"
        "print(sorted({'numpy', 'pyarrow', 'torch', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
