"""The leash: what is tied ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro.local import processes
from cerebro.local.processes import identify
from cerebro.runtime import parent_death
from tests.local.fakes import STEADY, python
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

TYING_PARENT = f"""
import subprocess, sys, signal
from cerebro.runtime.parent_death import with_parent_death_signal
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


_TELL_NICENESS = """
import os
from pathlib import Path
session = Path("/proc/self/autogroup")
print(os.nice(0), session.read_text().split()[-1] if session.exists() else "none")
"""


def test_what_runs_in_the_background_yields_to_other_sessions() -> None:
    """Its session gets the niceness too, where the kernel groups by session; this one keeps its own."""
    session = Path("/proc/self/autogroup")
    before = session.read_text() if session.exists() else "none"
    command = parent_death.with_parent_death_signal(python(_TELL_NICENESS), parent_death.BACKGROUND)
    told = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True).stdout
    assert told.split() == [str(min(19, os.nice(0) + 15)), "none" if before == "none" else "15"]
    assert (session.read_text() if session.exists() else "none") == before


def test_a_command_that_does_not_exist_is_named() -> None:
    """The status is that of a shell, and the message names the program."""
    done = subprocess.run(
        parent_death.with_parent_death_signal(["/nowhere"]), capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "cannot execute /nowhere: No such file" in done.stderr


def test_a_tether_without_a_command_explains_itself() -> None:
    """Wrong arguments are a usage message, not a traceback."""
    script = [sys.executable, "-I", "-S", parent_death.__file__]
    done = subprocess.run([*script, "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.split()[0]) == (2, "usage:")


def test_a_process_can_be_waited_for_and_signalled_by_identity() -> None:
    """A process that is gone is gone for every question; its pid alone proves nothing."""
    with subprocess.Popen(python(f"print('up', flush=True); {STEADY}"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        alive = identify(process.pid)
        assert alive is not None
        assert not processes.wait_gone(alive, 0.0)
        impostor = processes.ProcessId(alive.pid, "other")
        assert not processes.is_alive(impostor)
        assert not processes.send(impostor, signal.SIGKILL)
        assert processes.wait_gone(impostor, 0.0)
        assert processes.end([alive], grace_s=10.0) == ()
        assert identify(process.pid) is None, "a zombie is no process"
    assert not processes.send(alive, signal.SIGTERM)
