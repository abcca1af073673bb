"""The sub-epoch tests with TensorFlow as backend, in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro.keras.backend import CORES
from tests.keras.models import require_keras
from tests.waiting import HANG_S


@pytest.mark.slow
@pytest.mark.processes
def test_sub_epoch_tests_pass_with_tensorflow(tmp_path: Path) -> None:
    """Chains, savepoints, metrics, frozen weights."""
    require_keras("tensorflow")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'sub_epochs'}",
    ]
    tests = str(Path(__file__).with_name("test_sub_epochs.py"))
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", CORES: "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [
            *command,
            tests,
            "-k",
            "chain or (savepoint and 7) or evaluation or frozen or ragged or length or own",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=4 * HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
