"""Start a program as forks of a preloaded process, to save seconds of imports per start.

The command line and initial environment in /proc are the preloaded process's, so a test that reads them must start a
fresh program.
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
_MAX_BYTES, _MAX_FILES = 1 << 20, 8


class Forked:
    """A process started by a fork, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, pid: int, parent: Forking) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; `None` while it runs."""
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
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forking:
    """A client of the preloaded process, over a socket. Thread-safe."""

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
        """Start a child with these command-line arguments and this environment.

        Args:
            stdin: empty by default.
            stdout, stderr: this process's by default.
            more: files for descriptor 3 and up.
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
        """Send a request to the preloaded process and return its answer."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(_MAX_BYTES)
        assert answer, "the process that forks has ended"
        return int(answer)


class Forks(Forking):
    """The preloaded process as a context manager; its children may outlive it.

    Args:
        module: the module to import, whose `main` the children run.
        first: ``module:function`` to call in each child before `main`.
        environment: environment for the import; this process's by default.
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
    """Fork the preloaded process from this one, which must not have threads yet.

    It and its children end with this process. Each child leads a process group.

    Args:
        main: the function that children run.
    """
    ours, theirs = _pair()
    parent = os.getpid()
    if os.fork() == 0:
        code = 1
        try:
            end_with(parent)
            ours.close()
            server = os.getpid()
            request = _next_child(theirs, leads=True)
            if request is not None:
                end_with(server)
                _become(main.__module__, *request)
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
    """Serve requests; return the request and its files in each child, and `None` in the parent once it stops.

    Args:
        leads: each child leads a process group, which exists before the answer is sent.
    """
    while True:
        message, files, _, _ = socket.recv_fds(channel, _MAX_BYTES, _MAX_FILES)
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
    # Move received descriptors first, since their numbers may collide with the targets.
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
    gc.freeze()  # children need not collect imported objects
    with socket.socket(fileno=int(sys.argv[3])) as _channel:
        _asked = _next_child(_channel)
    if _asked is not None:
        _become(_name, *_asked)
        _prepare()
        _main()
