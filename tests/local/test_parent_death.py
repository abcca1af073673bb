"""A tied child process ends when its parent ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cerebro.local.supervision import processes
from cerebro.local.supervision.processes import identify
from cerebro.runtime.isolation import parent_death
from tests.local.fakes import STEADY, python
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

TYING_PARENT = f"""
import subprocess, sys, signal
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
child = subprocess.Popen(with_parent_death_signal([sys.executable, '-c', {f"print('up', flush=True); {STEADY}"!r}]),
                         stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


def test_a_tied_process_ends_when_its_parent_is_killed() -> None:
    """The child ends even if it has its own session."""
    with subprocess.Popen([sys.executable, "-c", TYING_PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = identify(int(parent.stdout.readline()))
        assert child is not None
        parent.kill()
    assert processes.wait_gone(child, HANG_S)


def test_a_tied_process_keeps_pid_arguments_and_status() -> None:
    """The tether execs the command, so the parent's pid is the command's."""
    command = parent_death.with_parent_death_signal(
        [*python("import os, sys; print(os.getpid(), sys.argv[1:]); sys.exit(7)"), "a b"]
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate()
    assert (process.returncode, output) == (7, f"{process.pid} ['a b']\n")


def test_a_tether_whose_parent_is_gone_runs_nothing() -> None:
    """The command never starts if the parent ended before the signal was set."""
    command = parent_death.with_parent_death_signal(python("print('started')"))
    command[command.index("--") - 2] = "1"  # a child of another process
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
