"""The end of a process that has computed."""

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
"""What is left for the interpreter's end would end the process by a signal."""


def ended(work: str) -> tuple[int, str, str]:
    """Exit status of a process that ends after this, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGINNING}{work}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_process_ends_with_its_work_whatever_libraries_do_at_the_interpreters_end() -> None:
    """What it has said is written out."""
    assert ended("end_after(lambda: print('done'))") == (0, "done\n", "")


def test_what_work_raises_is_told() -> None:
    """With the status of any process that raised."""
    status, said, told = ended("print('begun'); end_after(lambda: 1 / 0)")
    assert (status, said) == (1, "begun\n")
    assert told.endswith("ZeroDivisionError: division by zero\n")
