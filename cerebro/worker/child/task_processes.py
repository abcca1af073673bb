"""Task processes: one per task, forked from a parent that has decoded the user's code and runs no task.

The child's task loop creates one `TaskProcesses` per user code and calls `serve`. All changes that a task makes to its
process (library defaults, patched classes, globals, environment, limits, threads) end with that process. The parent
forks the next process during the present task, and the new process preloads its checkpoint.

A fork copies only one thread and shares open files. `ForkHazards` detects user code that can't be forked; the parent
then leaves more of the code to the task processes (`Depth`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cerebro.runtime.isolation.forked import lasting_threads
from cerebro.runtime.isolation.parent_death import end_with
from cerebro.runtime.isolation.process_exit import end_after, fork
from cerebro.worker.child.context import Context
from cerebro.worker.child.fork_server import end_like
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import (
    FROM_TASK_PROCESS,
    TO_TASK_PROCESS,
    Depth,
    FromTaskProcess,
    NeedsOtherParent,
    Preload,
    Ready,
    Run,
    ServeAgent,
    TaskFinished,
    ToChild,
    ToTaskProcess,
)

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS, _PAUSE_S = 200, 0.01
_TRACKER = "multiprocessing.resource_tracker"
"""Marks the command line of a Python helper, which cleans up after its process and then exits."""
_TRACKER_ROUNDS = 50
_MAX_NAMED = 5
_HARMLESS_FILES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/nvidia")
_GPU_FILES = ("/dev/nvidia-uvm", "/dev/kfd")
"""Open once the GPU driver is initialised; forks can't use the driver then."""


class ForkHazards(NamedTuple):
    """Resources that forks of this process would share.

    Attributes:
        files: open descriptors and their targets.
        shared: address ranges of shared writable mappings.
    """

    files: frozenset[tuple[str, str]]
    shared: frozenset[str]

    @classmethod
    def now(cls) -> ForkHazards:
        """Return this process's current hazards."""
        return cls(frozenset(_open_files()), frozenset(_shared_mappings()))

    def added(self) -> str:
        """Describe a hazard added since this snapshot, or return an empty text."""
        threads = lasting_threads()
        now = ForkHazards.now()
        files = sorted(target for _, target in now.files - self.files)
        if threads:
            return f"it has started threads ({', '.join(threads[:_MAX_NAMED])})"
        if any(file.startswith(_GPU_FILES) for file in files) or _has_gpu_context():
            return "it has used a GPU"
        if open_files := [file for file in files if not file.startswith(_HARMLESS_FILES)]:
            return f"it keeps files open ({', '.join(open_files[:_MAX_NAMED])})"
        if now.shared - self.shared:
            return "it has memory that processes share"
        return "it has started processes" if has_children() else ""


def has_children() -> bool:
    """True if this process has children, ended ones included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


Prepare = Callable[[Run, Depth], str]
"""Run user code to a depth for a task; return the reason not to fork, or an empty text."""
RunOne = Callable[[Channel[ToTaskProcess], str], None]
"""Run one task in a forked process. Takes the channel to the parent and the hash of the user code."""


class TaskProcesses:
    """Serves an agent: runs each task of one user code in a new process.

    Args:
        channel: to the agent. Only the running task process reads it.
    """

    def __init__(
        self, channel: Channel[ToChild], context: Context, prepare: Prepare, run_one: RunOne
    ) -> None:
        self._channel, self._context = channel, context
        self._prepare, self._run_one = prepare, run_one
        self._code = ""
        self._waiting: _TaskProcess | None = None
        """Process for the next task, forked in advance."""
        self._ending: list[_TaskProcess] = []
        """Exiting after their task: freeing memory takes some milliseconds."""

    def serve(self) -> bytes:
        """Run tasks until the agent leaves or sends another user code.

        Returns:
            Unread bytes for the next process, which has other user code or a lower `Depth`; empty when the agent left.
        """
        self._channel.send(Ready())
        while (message := self._channel.receive()) is not None and not isinstance(message, Run):
            pass  # nothing to preload or release yet
        if message is None:
            return b""
        if (lower := self._prepared(message)) < message.depth:
            return self._channel.take_unread(message.model_copy(update={"depth": lower}))
        self._code = message.body.code
        be_subreaper()
        gc.collect()
        gc.freeze()  # garbage collection in a fork would copy all pages
        unread = self._channel.take_unread(message).decode()
        running = self._fork()
        self._context.start_up.is_cold = False  # later tasks don't wait for imports
        running.send(ServeAgent(unread=unread, codes={}))
        return self._follow(running)

    def _prepared(self, message: Run) -> Depth:
        """Prepare user code; return the depth that this code allows."""
        depth = message.depth
        try:
            reason = self._prepare(message, depth)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; the task process reports it
            del error
            return Depth.NOTHING
        return Depth(depth - 1) if reason else depth

    def _follow(self, running: _TaskProcess) -> bytes:
        while True:
            message = running.receive(self._ending)
            if message is None:
                self._end_like(running)
            elif isinstance(message, _TaskProcess):
                self._ended(message, running)
            elif isinstance(message, Preload):
                with suppress(OSError):  # a hint: the hand-over forks again
                    self._next(running).send(message)
            elif isinstance(message, TaskFinished):
                running = self._hand_over(running, message)
            else:
                self._end_others()
                running.reap()
                _end_leftovers(but=set())
                return message.unread.encode() if isinstance(message, NeedsOtherParent) else b""

    def _hand_over(self, running: _TaskProcess, finished: TaskFinished) -> _TaskProcess:
        running.log = finished.log
        try:
            following = self._next(running)
            self._ending.append(running)
        except OSError:  # no room for a process: ended ones make room
            self._ending.append(running)
            for process in tuple(self._ending):
                self._ended(process)
            following = self._next()
        self._waiting = None
        self._context.user_code.learn(finished.codes)
        if finished.must_exit_first and running in self._ending:
            self._ended(running, following)
        following.send(ServeAgent(unread=finished.unread, codes=finished.codes))
        return following

    def _ended(self, process: _TaskProcess, *running: _TaskProcess) -> None:
        """Reap a finished process, and end the processes that it left running."""
        process.reap()
        self._ending.remove(process)
        here = (*running, *self._ending, *([self._waiting] if self._waiting else []))
        if (killed := _end_leftovers(but={each.pid for each in here})) and process.log is not None:
            _note(process.log, killed)

    def _next(self, *running: _TaskProcess) -> _TaskProcess:
        if self._waiting is None:
            self._waiting = self._fork(*running, *self._ending)
        return self._waiting

    def _fork(self, *others: _TaskProcess) -> _TaskProcess:
        return _TaskProcess(lambda parent: self._run_one(parent, self._code), others)

    def _end_others(self) -> None:
        for process in (*self._ending, *([self._waiting] if self._waiting else [])):
            process.kill()
        self._ending, self._waiting = [], None

    def _end_like(self, running: _TaskProcess) -> None:
        """Die as the task process died, so that the agent sees its exit status or signal."""
        self._end_others()
        status = running.reap()
        _end_leftovers(but=set())
        end_like(status)


class _TaskProcess:
    def __init__(
        self, work: Callable[[Channel[ToTaskProcess]], None], others: tuple[_TaskProcess, ...]
    ) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = fork()
        if self.pid == 0:

            def run() -> None:
                end_with(parent)
                be_subreaper()
                ours.close()
                for other in others:
                    other.let_go()
                work(Channel(theirs, TO_TASK_PROCESS))

            end_after(run)
        theirs.close()
        try:
            self.end = os.pidfd_open(self.pid)
        except OSError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise
        self.channel: Channel[FromTaskProcess] = Channel(ours, FROM_TASK_PROCESS)
        self.log: Path | None = None
        """Log of its ended task."""

    def send(self, message: ToTaskProcess) -> None:
        with suppress(OSError):  # it died; `receive` notices
            self.channel.send(message)

    def receive(self, ending: Sequence[_TaskProcess]) -> FromTaskProcess | _TaskProcess | None:
        """Wait for its next message, or for the exit of another process.

        Returns:
            The message, or that other process; `None` if this process died, or user code closed its channel.
        """
        poll = select.poll()
        for source in (self.channel.fileno(), self.end, *(other.end for other in ending)):
            poll.register(source, select.POLLIN)
        while True:
            message = self.channel.pending()
            if message is None:
                ready = {number for number, _ in poll.poll()}
                # it may have sent a message before it died
                message = self.channel.pending()
                if message is None and (self.end in ready or self.channel.is_closed):
                    return None
                if message is None and (ended := [other for other in ending if other.end in ready]):
                    return ended[0]
            if message is not None:
                return message

    def reap(self) -> int:
        """Wait for its end and return its exit status."""
        _, status = os.waitpid(self.pid, 0)
        self.let_go()
        return status

    def let_go(self) -> None:
        self.channel.close()
        os.close(self.end)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.reap()


def be_subreaper() -> None:
    """Adopt orphaned descendants, including daemons (PR_SET_CHILD_SUBREAPER)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_leftovers(*, but: Collection[int]) -> list[str]:
    """Kill all children of this process except `but`, and their orphans.

    Returns:
        Descriptions of the killed processes.
    """
    killed: dict[int, str] = {}
    for number in range(_ROUNDS):
        children = [pid for pid in _children() if pid not in but]
        if not children:
            break
        for pid in children:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    continue
            command = _command(pid)
            if _TRACKER in command and number < _TRACKER_ROUNDS:
                continue
            killed.setdefault(pid, f"{command or 'a process'} ({pid})")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    return list(killed.values())


def _note(log: Path, killed: list[str]) -> None:
    named = ", ".join(killed[:_MAX_NAMED]) + (", ..." if len(killed) > _MAX_NAMED else "")
    what = "1 process" if len(killed) == 1 else f"{len(killed)} processes"
    with suppress(OSError), log.open("a") as file:
        file.write(
            f"{what} started by user code outlived the task and had to be ended: {named}. Wait for them, or end them, "
            "before you return.\n"
        )


def _children() -> list[int]:
    this_pid = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{this_pid}/children").read_text().split()]
    except OSError:  # a kernel without that file
        return [pid for pid in _all_pids() if _parent_of(pid) == this_pid]


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return " ".join(words.decode(errors="replace").split())[:100]
    return ""


def _open_files() -> list[tuple[str, str]]:
    found = []
    for entry in os.scandir("/proc/self/fd"):
        with suppress(OSError):  # the directory listing's descriptor
            found.append((entry.name, str(Path(entry.path).readlink())))
    return found


def _shared_mappings() -> list[str]:
    lines = (line.split(maxsplit=2) for line in Path("/proc/self/maps").read_text().splitlines())
    return [addresses for addresses, rights, _ in lines if rights.startswith("rw") and rights.endswith("s")]


def _has_gpu_context() -> bool:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return bool(cuda is not None and cuda.is_initialized())
