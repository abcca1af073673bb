"""Run modules that test, as programs, whether this machine supports them."""

from __future__ import annotations

import subprocess
import sys

_LIMIT_S = 30.0


def failure_of(module: str) -> str:
    """Run a module's self-test in a new process. Return the failure or an empty text."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", module],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it could not be tried: {error}"
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit status {done.returncode}")
