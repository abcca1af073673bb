"""Linux control groups, for tests that run out of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parent.parent
LIMIT_BYTES = 384 << 20


@contextmanager
def limited() -> Iterator[Path]:
    """Create a control group of `LIMIT_BYTES` without swap; skip the test if that fails."""
    membership = Path("/proc/self/cgroup").read_text().splitlines()
    old = next((line.split(":", 2)[2] for line in membership if ":memory:" in line), None)
    mount = Path("/sys/fs/cgroup")
    base = mount / "memory" / old.lstrip("/") if old else mount
    group = base / f"cerebro-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(LIMIT_BYTES))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    yield group
    deadline = time.monotonic() + 30
    while (group / "cgroup.procs").read_text():
        assert time.monotonic() < deadline, "processes of the group live on"
    group.rmdir()


def run_in(group: Path, script: str, *arguments: object) -> str:
    """Run Python code in a process of a group and return its output."""

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=enter,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
