"""Agents under test whose child processes fork from a process with the imports done.

The child runs the same program with its command line, environment and files, without interpreter start and
imports.
Tests of start-up time, imports, the memory allocator and the initial environment use real processes
(`Agents.start`).
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
"""Variable that names the handler to import in the parent of all agents."""

if _HANDLER := os.environ.get(WARM, ""):
    importlib.import_module(_HANDLER)


def prepare() -> None:
    """Prepare an agent: drop rights as a container does, and fork its children."""
    rights.drop()
    forking = SimpleNamespace(**vars(subprocess) | {"Popen": _Starting(fork_server(task_loop.main))})
    process.subprocess = forking  # type: ignore[attr-defined, assignment]


class _Starting:
    """Replaces `subprocess.Popen` in an agent."""

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
        return subprocess.Popen(  # a different interpreter or folder needs a real process
            command,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=start_new_session,
            cwd=cwd,
        )
