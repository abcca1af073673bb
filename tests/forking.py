"""Starts a program as forks of one process that has imported it: the same program, without a second of imports each.

What the system keeps of a process from its start (command line, initial environment) is that of the one
process: a test that looks at these starts its program anew.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from cerebro.runtime.isolation.parent_death import end_with

_ROOT = Path(__file__).resolve().parent.parent
_MOST_BYTES, _MOST_FILES = 1 << 20, 8


class Forked:
    """A process that was started so; as far as tests need it, what `subprocess.Popen` is."""

    def __init__(self, pid: int, parent: Forking) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; `None` while it runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0.0)[0]:
            os.close(self._ended)
            self.returncode = self._parent.ask({"reap": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            select.select([self._ended], [], [], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forking:
    """What is asked of the one process, over a socket. Safe for several threads."""

    def __init__(self, channel: socket.socket) -> None:
        self._socket, self._lock = channel, threading.Lock()

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        more: Sequence[int] = (),
    ) -> Forked:
        """Start a child with these arguments of its command line and this environment.

        Args:
            stdin: nothing is to be read unless it is given.
            stdout, stderr: those of this process unless they are given.
            more: what the child has open as descriptor 3 and so on.
        """
        request = {"arguments": list(arguments), "environment": dict(environment)}
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - no path, but a device
            files = [
                (stdin or nothing).fileno(),
                stdout.fileno() if stdout else 1,
                stderr.fileno() if stderr else 2,
                *more,
            ]
            return Forked(self.ask(request, files), self)

    def ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> int:
        """A question to the one process, and its answer."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(_MOST_BYTES)
        assert answer, "the process that forks has ended"
        return int(answer)


class Forks(Forking):
    """The one process. A context: at its end it is gone; who is left of its children is not.

    Args:
        module: what it has imported, whose `main` its children run.
        first: ``module:function``, called in each child before that.
        environment: in which it imports; this process's unless it is given.
    """

    def __init__(
        self, module: str, *, first: str = "builtins:dict", environment: Mapping[str, str] | None = None
    ) -> None:
        ours, theirs = _pair()
        super().__init__(ours)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking", module, first, str(theirs.fileno())],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()


def fork_server(main: Callable[[], object]) -> Forking:
    """Fork the one process from this one, which has no threads yet. It and its children end with this one. Each child
    leads a group of processes.

    Args:
        main: what its children run.
    """
    ours, theirs = _pair()
    parent = os.getpid()
    if os.fork() == 0:
        code = 1
        try:
            end_with(parent)
            ours.close()
            server = os.getpid()
            asked = _next_child(theirs, leads=True)
            if asked is not None:
                end_with(server)
                _become(main.__module__, *asked)
                main()
            code = 0
        except BaseException:  # noqa: BLE001 - its outermost frame: told as any process tells it
            traceback.print_exc()
        os._exit(code)
    theirs.close()
    return Forking(ours)


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _next_child(channel: socket.socket, *, leads: bool = False) -> tuple[Mapping[str, Any], list[int]] | None:
    """Serve; in each child, what it is to do and its files, in the parent, at the end, `None`.

    Args:
        leads: each child leads a group of processes, which is there before anybody knows of the child.
    """
    while True:
        message, files, _, _ = socket.recv_fds(channel, _MOST_BYTES, _MOST_FILES)
        if not message:
            return None
        request = json.loads(message)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())
        elif pid := os.fork():
            if leads:
                with suppress(ProcessLookupError):
                    os.setpgid(pid, pid)
            channel.send(str(pid).encode())
        else:
            channel.close()
            if leads:
                os.setpgid(0, 0)
            return request, files
        for descriptor in files:
            os.close(descriptor)


def _become(module: str, request: Mapping[str, Any], files: Sequence[int]) -> None:
    # Out of the way first: what was received may have the number of a place.
    files = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, len(files)) for descriptor in files]
    for place, descriptor in enumerate(files):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [module, *request["arguments"]]


if __name__ == "__main__":
    _name, (_place, _, _first) = sys.argv[1], sys.argv[2].partition(":")
    _main, _prepare = importlib.import_module(_name).main, getattr(importlib.import_module(_place), _first)
    gc.freeze()  # what is imported stays: no child looks for garbage among it
    with socket.socket(fileno=int(sys.argv[3])) as _channel:
        _asked = _next_child(_channel)
    if _asked is not None:
        _become(_name, *_asked)
        _prepare()
        _main()
