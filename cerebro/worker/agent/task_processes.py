"""One process per task: each is forked from a process that has decoded the user's code and runs no task itself.

Whatever a task changes in its process (defaults of a library, patched classes, module globals, the environment, limits,
threads) ends with that process, so no other task meets it. The process for the next task is forked while the present
one runs, and loads its checkpoint meanwhile.

Forking copies one thread and all descriptors. So user code is decoded here only as far as that leaves nothing behind
which a fork would break or share: see `Depth` and `ForkHazards`.
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
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from cerebro.runtime.ending import end_after
from cerebro.runtime.parent_death import end_with
from cerebro.worker.agent.channel import Channel
from cerebro.worker.agent.context import Context
from cerebro.worker.agent.forking import end_like

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS, _PAUSE_S = 200, 0.01
_TRACKER = "multiprocessing.resource_tracker"
"""Part of the command line of Python's own helper: it ends by itself, after it has removed what its process leaked."""
_TRACKER_ROUNDS = 50
_MOST_NAMED = 5
_HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads of libraries that start them anew in a fork."""
_HARMLESS_FILES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/nvidia")
_GPU_FILES = ("/dev/nvidia-uvm", "/dev/kfd")
"""Open in a process whose GPU driver has been initialised, which works in no fork of it."""


class Depth(IntEnum):
    """How much of the user's code the parent of the task processes runs; each of them does the rest."""

    NOTHING = 0
    IMPORTED = 1
    INITIALISED = 2


class ForkHazards(NamedTuple):
    """What a fork of this process would share with others.

    Attributes:
        files: open descriptors, with what they lead to.
        shared: writable mappings that forks have in common.
    """

    files: frozenset[tuple[str, str]]
    shared: frozenset[str]

    @classmethod
    def now(cls) -> ForkHazards:
        """Of this process at this moment."""
        return cls(frozenset(_open_files()), frozenset(_shared_mappings()))

    def added(self) -> str:
        """What has come since that a fork would break or share, for people; empty if nothing has."""
        _fork_once()  # libraries that end their threads before a fork have done so by now
        threads = [name for name in _thread_names() if name not in _HARMLESS_THREADS]
        now = ForkHazards.now()
        files = sorted(target for _, target in now.files - self.files)
        if len(threads) > 1:
            return f"it has started threads ({', '.join(sorted(threads[:_MOST_NAMED]))})"
        if any(file.startswith(_GPU_FILES) for file in files) or _has_gpu_context():
            return "it has used a GPU"
        if kept := [file for file in files if not file.startswith(_HARMLESS_FILES)]:
            return f"it keeps files open ({', '.join(kept[:_MOST_NAMED])})"
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


Prepare = Callable[[dict[str, Any], Depth], str]
"""Runs user code so far for the task of a message; returns what keeps this process from being forked, or nothing."""
RunOne = Callable[[Channel, str], None]
"""In a forked process: do one task of the user code with this hash; the channel leads to the process that forked it."""


class TaskProcesses:
    """Serves an agent with a process per task, as long as they are of one user code.

    Args:
        channel: of the agent. The process that has the turn reads it.
    """

    def __init__(self, channel: Channel, context: Context, prepare: Prepare, run_one: RunOne) -> None:
        self._channel, self._context = channel, context
        self._prepare, self._run_one = prepare, run_one
        self._code = ""
        self._waiting: _TaskProcess | None = None
        """Forked ahead for the task that comes next."""
        self._ending: list[_TaskProcess] = []
        """Those whose task is over: to give up its memory takes a process some milliseconds."""

    def serve(self) -> bytes:
        """Have tasks done as they come.

        Returns:
            What was read and is left to another process, because it is about other user code, or because user code is
            to be prepared less far; empty at the end.
        """
        self._channel.send({"is": "ready"})
        while (message := self._channel.receive()) is not None and message["do"] != "run":
            pass  # nothing is loaded yet that could be let go of
        if message is None:
            return b""
        depth = Depth(message.pop("depth", Depth.INITIALISED))
        if (lower := self._prepared(message, depth)) < depth:
            return self._channel.left(message | {"depth": int(lower)})
        self._code = message["body"]["code"]
        be_subreaper()
        gc.collect()
        gc.freeze()  # or each process would copy the pages of all objects when it first looks for garbage
        unread = self._channel.left(message).decode()
        running = self._fork()
        self._context.is_cold = False  # from now on a task waits for nothing that is done here
        running.tell({"do": "go", "unread": unread, "codes": {}})
        return self._follow(running)

    def _prepared(self, message: dict[str, Any], depth: Depth) -> Depth:
        """How far user code may be run here: `depth`, or less."""
        try:
            reason = self._prepare(message, depth)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything: its task will, and tells of it
            del error
            return Depth.NOTHING
        return Depth(depth - 1) if reason else depth

    def _follow(self, running: _TaskProcess) -> bytes:
        while True:
            said = running.said(self._ending)
            if said is None:
                self._end_like(running)
            elif isinstance(said, _TaskProcess):
                self._ended(said, running)
            elif said["is"] == "preload":
                self._next(running).tell({"do": "preload", "body": said["body"]})
            elif said["is"] == "over":
                running = self._hand_over(running, said)
            else:
                self._end_others()
                running.reap()
                _end_left(but=set())
                return str(said.get("unread", "")).encode()

    def _hand_over(self, running: _TaskProcess, said: dict[str, Any]) -> _TaskProcess:
        following = self._next(running)
        self._waiting = None
        self._context.learn(said["codes"])
        running.log = Path(said["log"])
        self._ending.append(running)
        if said["is_first_to_end"]:
            self._ended(running, following)
        following.tell({"do": "go", "unread": said["unread"], "codes": said["codes"]})
        return following

    def _ended(self, process: _TaskProcess, running: _TaskProcess) -> None:
        """End what a task's process has left behind, once it has ended itself."""
        process.reap()
        self._ending.remove(process)
        here = (running, *self._ending, *([self._waiting] if self._waiting else []))
        if (left := _end_left(but={each.pid for each in here})) and process.log is not None:
            _note(process.log, left)

    def _next(self, running: _TaskProcess) -> _TaskProcess:
        if self._waiting is None:
            self._waiting = self._fork(running, *self._ending)
        return self._waiting

    def _fork(self, *others: _TaskProcess) -> _TaskProcess:
        return _TaskProcess(lambda parent: self._run_one(parent, self._code), others)

    def _end_others(self) -> None:
        for process in (*self._ending, *([self._waiting] if self._waiting else [])):
            process.kill()
        self._ending, self._waiting = [], None

    def _end_like(self, running: _TaskProcess) -> None:
        """The task's process ended by itself: the agent sees this one end in the same way."""
        self._end_others()
        status = running.reap()
        _end_left(but=set())
        end_like(status)


class _TaskProcess:
    """A forked process, as its parent sees it."""

    def __init__(self, work: Callable[[Channel], None], others: tuple[_TaskProcess, ...]) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:

            def run() -> None:
                end_with(parent)
                be_subreaper()
                ours.close()
                for other in others:
                    other.let_go()
                work(Channel(theirs))

            end_after(run)
        theirs.close()
        self.channel, self.end = Channel(ours), os.pidfd_open(self.pid)
        self.log: Path | None = None
        """Of its task, which is over."""

    def tell(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # it has ended: that is found when it has its turn
            self.channel.send(message)

    def said(self, ending: Sequence[_TaskProcess]) -> dict[str, Any] | _TaskProcess | None:
        """What it says next, or which of the others has ended; `None`: it has ended without a word, or closed its end,
        which user code may have done."""
        poll = select.poll()
        for source in (self.channel.fileno(), self.end, *(other.end for other in ending)):
            poll.register(source, select.POLLIN)
        while True:
            message = self.channel.pending()
            if message is None:
                ready = {number for number, _ in poll.poll()}
                # What it said before it ended counts.
                message = self.channel.pending()
                if message is None and (self.end in ready or self.channel.is_closed):
                    return None
                if message is None and (ended := [other for other in ending if other.end in ready]):
                    return ended[0]
            # User code may have written to a descriptor that it did not open.
            if message is not None and _is_understood(message):
                return message

    def reap(self) -> int:
        """Wait for its end; returns its status."""
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


def _is_understood(message: dict[str, Any]) -> bool:
    needed = {
        "preload": ("body",),
        "over": ("unread", "log", "codes", "is_first_to_end"),
        "other": ("unread",),
        "end": (),
    }.get(str(message.get("is")))
    return needed is not None and all(name in message for name in needed)


def be_subreaper() -> None:
    """Have orphans among the descendants of this process become its children: whatever they made of their session."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_left(*, but: Collection[int]) -> list[str]:
    """End all children of this process except these, and the orphans that come from them.

    Returns:
        What they were, for people; without those that had ended, or end by themselves.
    """
    told: dict[int, str] = {}
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
            told.setdefault(pid, f"{command or 'a process'} ({pid})")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    return list(told.values())


def _note(log: Path, left: list[str]) -> None:
    named = ", ".join(left[:_MOST_NAMED]) + (", ..." if len(left) > _MOST_NAMED else "")
    what = "1 process" if len(left) == 1 else f"{len(left)} processes"
    with suppress(OSError), log.open("a") as file:
        file.write(
            f"{what} started by user code outlived the task and had to be ended: {named}. Wait for them, or end them, "
            "before you return.\n"
        )


def _children() -> list[int]:
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{own}/children").read_text().split()]
    except OSError:  # a kernel without that file
        return [pid for pid in _all_pids() if _parent_of(pid) == own]


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
        with suppress(OSError):  # the one that lists them
            found.append((entry.name, str(Path(entry.path).readlink())))
    return found


def _shared_mappings() -> list[str]:
    lines = (line.split(maxsplit=2) for line in Path("/proc/self/maps").read_text().splitlines())
    return [addresses for addresses, rights, _ in lines if rights.startswith("rw") and rights.endswith("s")]


def _thread_names() -> list[str]:
    found = []
    for entry in os.scandir("/proc/self/task"):
        with suppress(OSError):
            found.append(Path(entry.path, "comm").read_text().strip())
    return found


def _fork_once() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _has_gpu_context() -> bool:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return bool(cuda is not None and cuda.is_initialized())
