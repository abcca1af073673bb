"""Run a module's self-test as a program in a new process.

`landlock` and `metadata_guard` test themselves with it, because their restrictions cannot be undone. A test has 30 s.
"""

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
