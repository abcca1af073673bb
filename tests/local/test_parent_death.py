"""The leash: what is tied ends with its parent."""

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
    """kill -9 of the parent is enough, also when the child has a session of its own."""
    with subprocess.Popen([sys.executable, "-c", TYING_PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = identify(int(parent.stdout.readline()))
        assert child is not None
        parent.kill()
    assert processes.wait_gone(child, HANG_S)


def test_a_tied_process_keeps_pid_arguments_and_status() -> None:
    """The tether becomes the command: the pid its parent knows is the command's."""
    command = parent_death.with_parent_death_signal(
        [*python("import os, sys; print(os.getpid(), sys.argv[1:]); sys.exit(7)"), "a b"]
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate()
    assert (process.returncode, output) == (7, f"{process.pid} ['a b']\n")


def test_a_tether_whose_parent_is_gone_runs_nothing() -> None:
    """A parent that ended before the leash was set is noticed: the command never starts."""
    command = parent_death.with_parent_death_signal(python("print('started')"))
    command[command.index("--") - 2] = "1"  # somebody else's child
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
