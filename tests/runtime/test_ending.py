"""A process exits cleanly after its work."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import HANG_S

pytestmark = pytest.mark.commands

BEGINNING = (
    "import atexit, os; from cerebro.runtime.isolation.process_exit import end_after; "
    "atexit.register(os.abort)\n"
)
"""Code that would kill the process by a signal at interpreter exit."""


def ended(work: str) -> tuple[int, str, str]:
    """Return the exit status and output of a process that runs `work`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGINNING}{work}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_process_ends_with_its_work_despite_exit_handlers() -> None:
    """Output is flushed first."""
    assert ended("end_after(lambda: print('done'))") == (0, "done\n", "")


def test_exceptions_of_the_work_are_printed() -> None:
    """The exit status is the usual one for an exception."""
    status, said, errors = ended("print('begun'); end_after(lambda: 1 / 0)")
    assert (status, said) == (1, "begun\n")
    assert errors.endswith("ZeroDivisionError: division by zero\n")
