"""A child process seen from the agent: started, spoken to, ended.

Must be started from the agent's main thread: the kernel ties the child's life to the thread that forked it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebro.contract.tasks import Failure, FailureKind
from cerebro.runtime.parent_death import with_parent_death_signal
from cerebro.runtime.usage.memory import MemoryGroup
from cerebro.worker.agent import allocator
from cerebro.worker.agent.channel import Channel
from cerebro.worker.agent.forking import await_end
from cerebro.worker.agent.settings import SECRETS, Settings

_TAIL = 2000
_GRACE_S = 2.0
_GUESS = ": killed, perhaps for lack of memory"
_OF_MEMORY = frozenset({FailureKind.CRASH, FailureKind.USER_ERROR})
"""Kinds that a process killed for lack of memory shows as: its own death, or an error in the one that waited for it."""


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """What a child is made for; a task that needs another setting needs another child. For other user code it forks
    another process by itself."""

    handler: str
    python: str
    archive: str
    """Folder with the user's files, or empty."""


class ChildProcess:
    """A running child."""

    def __init__(self, setting: ChildSpec, settings: Settings, memory: MemoryGroup) -> None:
        self.setting = setting
        self._memory = memory
        self._kills = memory.kills()
        self.code = ""
        """Hash of the user code of its newest task: it has this one, and perhaps no other any more."""
        self.is_resting = True
        self.used = time.monotonic()
        """When its newest task ended."""
        self.is_ready = False
        """Whether it has imported what it needs and listens."""
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
        environment |= settings.volumes.as_environment()
        environment["CEREBRO_ARCHIVE"] = setting.archive
        environment |= allocator.tuned(environment, memory.limit_bytes() or _machine_bytes())
        self._log = log = settings.volumes.logs / f"{settings.worker}.child.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # -P: a file of the user's named like a module of the standard library must not replace it.
        command = [
            setting.python,
            "-P",
            "-m",
            "cerebro.worker.agent.child",
            "--channel",
            str(theirs.fileno()),
        ]
        command += ["--handler", setting.handler, "--cores", str(settings.cores)]
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                with_parent_death_signal(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                # Its own group, so that processes which user code starts end with it.
                start_new_session=True,
                cwd=setting.archive or None,
            )
        theirs.close()
        self.channel = Channel(ours)
        self.pid = self._process.pid
        self.end = os.pidfd_open(self.pid)
        """A descriptor that is readable once the process has ended, also while what it forked lives on and keeps the
        channel open."""

    def run(self, body: Any, attempt: int, codes: dict[str, str], log: Path, *, asked: float) -> None:
        """Ask for a task; the answer comes over the channel. `asked` is when the agent began to see to it: the
        monotonic clock is the same in all processes of a machine."""
        self._kills = self._memory.kills()
        self.code, self.is_resting = body["code"], False
        message = {"do": "run", "body": body, "attempt": attempt, "codes": codes, "log": str(log)}
        self.channel.send(message | {"asked": asked})

    def preload(self, body: Any) -> None:
        """Hint at the next task."""
        self.channel.send({"do": "preload", "body": body})

    def rest(self) -> None:
        """Have it let go of what it can make again; nothing if it was told already."""
        if not self.is_resting:
            self.is_resting = True
            with suppress(OSError):  # it has ended, and is found to have when it is needed
                self.channel.send({"do": "rest"})

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.end >= 0 and self._process.poll() is None

    def ask_to_end(self, why: str) -> None:
        """Ask it to leave the task at the next batch or row; it answers as ever, over the channel."""
        with suppress(OSError):  # it has ended: its end is told by `end`
            self.channel.send({"do": "end", "why": why})

    def reap(self) -> Failure:
        """How it ended by itself; nothing of it is left afterwards."""
        self.channel.close()
        message = self._exit_reason()
        self.kill()
        return self.explained(Failure(kind=FailureKind.CRASH, message=message))

    def explained(self, failure: Failure) -> Failure:
        """`failure`, or what is behind it: the kernel killed this process, or one that it started, for lack of memory
        since the task began."""
        kills = self._memory.kills()
        if failure.kind not in _OF_MEMORY or kills is None or kills == self._kills:
            return failure
        limit = self._memory.limit_bytes()
        used_up = f"the limit of this worker, {limit / 2**30:.2f} GiB" if limit else "the machine's memory"
        message = (
            f"killed by the kernel for lack of memory: {used_up}, was used up. Use a smaller batch_size or model (ETL: "
            f"fewer CEREBRO_CORES), or raise the memory limit of the workers. Seen here: {failure.message}"
        )
        return failure.model_copy(update={"kind": FailureKind.OUT_OF_MEMORY, "message": message})

    def _exit_reason(self) -> str:
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "the process closed its connection to the worker: user code closed a file it did not open"
        if code < 0:
            name = signal.Signals(-code).name
            is_unknown = name == "SIGKILL" and self._kills is None
            return f"the process ended by signal {name}{_GUESS if is_unknown else ''}"
        how = f"the process ended by itself with exit status {code}"
        if self.is_ready:
            return how
        # It never came to redirect its output to a task's log.
        with self._log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _TAIL))
            said = log.read(_TAIL).decode(errors="replace")
        return f"{how} before it could begin: {said.strip()}"

    def kill(self) -> None:
        """End it and what it started, at once. Calling twice is safe."""
        if self.end < 0:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        # Nor does the process that it had forked for user code write anything from now on.
        await_end(self.pid)
        self.channel.close()
        os.close(self.end)
        self.end = -1


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
