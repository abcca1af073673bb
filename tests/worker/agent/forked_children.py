"""Agents under test whose child processes are forks of one that has imported what these import.

The same program runs in the child, with its command line, environment and files; nobody waits for an interpreter and
for imports. What shows only in a process that was started anew (how long that takes, what it imports, its memory
allocator, its first environment as the system shows it) is looked at with agents that are no forks (`Agents.start`).
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import IO

from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.worker.agent.processes import process
from cerebro.worker.child import task_loop
from tests.forking import Forked, Forking, fork_server
from tests.worker.agent import rights

WARM = "WARM_HANDLER"
"""Variable of the process that all agents are forks of: the handler that it imports."""

if _HANDLER := os.environ.get(WARM, ""):
    importlib.import_module(_HANDLER)


def prepare() -> None:
    """In an agent, before it begins: a container's rights, and children that are forks."""
    rights.drop()
    forking = SimpleNamespace(**vars(subprocess) | {"Popen": _Starting(fork_server(task_loop.main))})
    process.subprocess = forking  # type: ignore[attr-defined, assignment]


class _Starting:
    """What an agent calls for `subprocess.Popen`."""

    def __init__(self, forks: Forking) -> None:
        self._forks = forks

    def __call__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: IO[bytes],
        stderr: int,
        pass_fds: Sequence[int],
        start_new_session: bool,
        cwd: str | None,
    ) -> Forked | subprocess.Popen[bytes]:
        known = with_parent_death_signal([sys.executable, "-P", "-m", task_loop.__name__, "--channel"])
        (channel,) = pass_fds
        if cwd is None and command[: len(known) + 1] == [*known, str(channel)]:
            assert (stdin, stderr, start_new_session) == (subprocess.DEVNULL, subprocess.STDOUT, True)
            arguments = ["--channel", "3", *command[len(known) + 1 :]]
            return self._forks.start(arguments, environment=env, stdout=stdout, stderr=stdout, more=pass_fds)
        return subprocess.Popen(  # it has an interpreter or a folder of its own
            command,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=start_new_session,
            cwd=cwd,
        )
