"""User code runs under the agent's user id but cannot read the token."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks.failures import FailureKind
from cerebro.worker.agent.processes.process_hardening import forget_secrets
from tests.kvs_api.real import TOKEN
from tests.waiting import HANG_S
from tests.worker.agent.agents import ROOT, Agents

NOBODY = 65534

_AGENT = """
import ctypes, os, signal, subprocess, sys
from cerebro.worker.agent.processes.process_hardening import hide_process

if os.getuid() == 0:
    os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
    # Changing the user id has hidden the process already: undone, as for one that was started by this user.
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)

def seen(path):
    done = subprocess.run(["cat", path], capture_output=True)
    return b"CEREBRO_TOKEN=hidden" in done.stdout

mine = f"/proc/{os.getpid()}/environ"
print("before", seen(mine))
hide_process()
print("after", seen(mine))
print("child", seen("/proc/self/environ"))
listed = subprocess.run(["ls", f"/proc/{os.getpid()}/fd"], capture_output=True)
print("descriptors", listed.returncode == 0)

# What the agent itself needs: its groups, its own descriptors, handles and ends of its children.
open("/proc/self/cgroup").read(), os.listdir("/proc/self/fd")
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
handle = os.pidfd_open(child.pid)
os.killpg(child.pid, signal.SIGKILL)
print("ended", child.wait())
score = subprocess.run(["sh", "-c", "echo 500 > /proc/self/oom_score_adj"])
print("score", score.returncode)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux'")
def test_a_hardened_process_is_unreadable_and_its_children_are_readable() -> None:
    """The environment becomes unreadable for other processes of the user; the agent itself still works."""
    done = subprocess.run(
        [sys.executable, "-c", _AGENT, str(NOBODY)],
        env={**os.environ, "CEREBRO_TOKEN": "hidden", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "before True",
        "after False",
        "child True",
        "descriptors False",
        "ended -9",
        "score 0",
    ]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_user_code_in_a_pod_does_not_see_the_token(agents: Agents) -> None:
    """Outside pods the token is in the environment of the parent process."""
    agents.start(is_fork=False)
    assert agents.failure(agents.give(0, "spy")) == (FailureKind.USER_ERROR, "ValueError: the token is open")
    agents.start(is_fork=False, CEREBRO_POD="worker-0", CEREBRO_POD_UID="1-2-3", CEREBRO_CONTAINER="worker")
    assert isinstance(agents.end_of(agents.give(1, "spy")), TaskCommitted)


def test_no_process_inherits_the_token() -> None:
    environment = {"CEREBRO_TOKEN": TOKEN, "CEREBRO_SERVER": "http://x"}
    forget_secrets(environment)
    assert environment == {"CEREBRO_SERVER": "http://x"}
