"""Restrict which files a process may change in mode, owner, times and attributes.

The worker's child runs a `Supervisor` in its first process; `cerebro.worker.child.sandbox` calls `enter` in the process
with user code. Landlock does not cover these changes.

A seccomp filter sends the system calls to a supervisor, the parent of the restricted process. The supervisor opens the
file, checks its folder and makes the change itself, so swapping the path in between has no effect. This needs no
privileges (seccomp_unotify(2), uapi/linux/seccomp.h). The supervisor refuses calls that it cannot judge.

``python -m cerebro.runtime.isolation.metadata_guard`` tests the machine: exit status 0, or one line with the reason.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import select
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cerebro.runtime.isolation.metadata_filter import CALLS, MACHINES, NUMBERS, Call, install
from cerebro.runtime.isolation.self_test import failure_of

_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_AT_FDCWD, _NOFOLLOW, _EMPTY_PATH = -100, 0x100, 0x1000
_UTIME_NOW, _UTIME_OMIT = 0x3FFFFFFF, 0x3FFFFFFE
_LONGEST_PATH, _LONGEST_VALUE = 4096, 1 << 16
_SELF = re.compile(r"/proc/(?:self|thread-self)(?=/|\Z)|/dev/fd(?=/|\Z)")
_NAMES = {number: name for name, number in NUMBERS.get(platform.machine(), {}).items()}


def why_unavailable() -> str:
    """Return why this machine cannot enforce it, or an empty text. Tests it in a subprocess."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"it is for Linux on {' and '.join(MACHINES)}"
    return failure_of(__name__)


def enter(door: socket.socket, folders: Sequence[Path]) -> None:
    """Restrict metadata changes of this thread and its descendants to `folders`, for good.

    Args:
        door: `Supervisor.door` of the parent process.
        folders: resolved paths; everything below them is included.

    Raises:
        OSError: the kernel or a seccomp profile refused the filter. The process is unchanged.
    """
    listener = install()
    try:
        socket.send_fds(door, [json.dumps([os.fspath(path) for path in folders]).encode()], [listener])
    finally:
        os.close(listener)


class Supervisor:
    """Judges the metadata changes of one child process after another."""

    def __init__(self) -> None:
        self._socket, self.door = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """The child closes `door` before it runs user code."""
        os.set_inheritable(self.door.fileno(), False)

    def close(self) -> None:
        """Close both ends."""
        self._socket.close()
        self.door.close()

    def attend(self, process: int) -> int:
        """Judge the changes of a child and its descendants until the child ends; return its wait status."""
        listener, folders = -1, tuple[str, ...]()
        with _opened(os.pidfd_open(process)) as ended:
            poll = select.poll()
            for descriptor in (ended, self._socket.fileno()):
                poll.register(descriptor, select.POLLIN)
            is_running = True
            while is_running:
                ready = dict(poll.poll())
                if self._socket.fileno() in ready and listener < 0:
                    content, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 20, 1)
                    listener, folders = descriptors[0], tuple(json.loads(content))
                    poll.unregister(self._socket.fileno())
                    poll.register(listener, select.POLLIN)
                if listener in ready:
                    if ready[listener] & select.POLLIN:
                        _judge(listener, folders)
                    else:
                        poll.unregister(listener)  # every restricted process has ended
                is_running = ended not in ready
        if listener >= 0:
            os.close(listener)
        return os.waitpid(process, 0)[1]


def _judge(listener: int, folders: Sequence[str]) -> None:
    """Answer one system call."""
    notice = bytearray(80)
    try:
        fcntl.ioctl(listener, _RECEIVE, notice)
    except OSError:
        return  # the caller has ended or was interrupted
    identity, process, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", notice)

    def check() -> None:
        """Raises: OSError: the caller has ended; another process may have its id."""
        fcntl.ioctl(listener, _IS_VALID, struct.pack("=Q", identity))

    try:
        error = _answer(CALLS[_NAMES[number]], process, arguments, folders, check)
    except OSError as cause:
        error = cause.errno or errno.EACCES
    except Exception:  # noqa: BLE001 - outermost frame: refuse and continue
        error = errno.EACCES
    with suppress(OSError):
        fcntl.ioctl(listener, _SEND, struct.pack("=QqiI", identity, 0, -error, 0))


def _answer(
    call: Call, process: int, arguments: Sequence[int], folders: Sequence[str], check: Callable[[], None]
) -> int:
    """Make the change if its folder is allowed; return errno or 0."""
    if Path(f"/proc/{process}").stat().st_uid != os.geteuid():
        return errno.EACCES  # the caller has another user id, so other rights
    with _opened(os.open(f"/proc/{process}/mem", os.O_RDONLY | os.O_CLOEXEC)) as memory:
        check()  # after opening, so the memory is the caller's
        with _file_of(call, process, memory, arguments) as file:
            if not _is_allowed(file, folders):
                return errno.EACCES
            _change(call.change, file, memory, arguments[call.value_index :])
    return 0


def _is_allowed(file: int, folders: Sequence[str]) -> bool:
    path = Path(f"/proc/self/fd/{file}").readlink()
    is_nowhere = os.fstat(file).st_nlink == 0 or not path.is_absolute()  # removed, in memory, a pipe
    return is_nowhere or any(path.is_relative_to(folder) for folder in folders)


@contextmanager
def _file_of(call: Call, process: int, memory: int, arguments: Sequence[int]) -> Iterator[int]:
    """Open the file of a call by ``O_PATH``."""
    folder = _AT_FDCWD if call.folder is None else _signed(arguments[call.folder])
    flags = 0 if call.flags is None else arguments[call.flags]
    address = None if call.path is None else arguments[call.path]
    path = os.fsdecode(_text(memory, address, _LONGEST_PATH)) if address else ""
    if not path and address and not flags & _EMPTY_PATH:
        raise OSError(errno.ENOENT, "an empty path")
    if found := _SELF.match(path):
        path = f"/proc/{process}{'/fd' if found[0] == '/dev/fd' else ''}{path[found.end() :]}"
    base = f"/proc/{process}/cwd" if folder == _AT_FDCWD else f"/proc/{process}/fd/{folder}"
    how = os.O_PATH | os.O_CLOEXEC
    if folder != _AT_FDCWD and not path.startswith("/") and not os.path.lexists(base):
        raise OSError(errno.EBADF, "a descriptor that is not open")
    if not path:
        with _opened(os.open(base, how)) as file:
            yield file
        return
    how_last = how if call.follows and not flags & _NOFOLLOW else how | os.O_NOFOLLOW
    if path.startswith("/"):
        with _opened(os.open(path, how_last)) as file:
            yield file
        return
    with _opened(os.open(base, how)) as start, _opened(os.open(path, how_last, dir_fd=start)) as file:
        yield file


def _change(change: str, file: int, memory: int, given: Sequence[int]) -> None:
    path = f"/proc/self/fd/{file}"
    if change == "mode":
        if stat.S_ISLNK(os.fstat(file).st_mode):
            raise OSError(errno.EOPNOTSUPP, "the mode of a link")
        Path(path).chmod(given[0] & 0o7777)
    elif change == "owner":
        os.chown(path, _signed(given[0]), _signed(given[1]))
    elif change == "attribute":
        if given[2] > _LONGEST_VALUE:
            raise OSError(errno.E2BIG, "the value of an attribute")
        os.setxattr(path, _text(memory, given[0], 256), _read(memory, given[1], given[2]), given[3])
    elif change == "no attribute":
        os.removexattr(path, _text(memory, given[0], 256))
    else:
        os.utime(path, ns=_times(change, file, memory, given[0]))


def _times(change: str, file: int, memory: int, address: int) -> tuple[int, int]:
    """Return the new access and modification time in nanoseconds."""
    if not address:
        return time.time_ns(), time.time_ns()
    if change == "seconds":
        read, changed = struct.unpack("=qq", _read(memory, address, 16))
        return read * 10**9, changed * 10**9
    read_s, read_part, changed_s, changed_part = struct.unpack("=qqqq", _read(memory, address, 32))
    if change == "microseconds":
        return read_s * 10**9 + read_part * 1000, changed_s * 10**9 + changed_part * 1000
    facts = os.fstat(file)

    def timestamp_ns(seconds: int, part: int, before: int) -> int:
        special = {_UTIME_NOW: time.time_ns(), _UTIME_OMIT: before}
        return special.get(part, seconds * 10**9 + part)

    return timestamp_ns(read_s, read_part, facts.st_atime_ns), timestamp_ns(
        changed_s, changed_part, facts.st_mtime_ns
    )


def _read(memory: int, address: int, count: int) -> bytes:
    found = os.pread(memory, count, address)
    if len(found) < count:
        raise OSError(errno.EFAULT, "memory that is not there")
    return found


def _text(memory: int, address: int, max_bytes: int) -> bytes:
    """Read a zero-terminated text page by page: the next page may be unmapped."""
    found = b""
    while len(found) < max_bytes:
        piece = os.pread(
            memory, min(max_bytes - len(found), 4096 - (address + len(found)) % 4096), address + len(found)
        )
        if not piece:
            raise OSError(errno.EFAULT, "memory that is not there")
        found += piece
        if b"\0" in piece:
            return found[: found.index(b"\0")]
    raise OSError(errno.ENAMETOOLONG, "a text that is too long")


def _signed(argument: int) -> int:
    """Convert an argument to a C int, such as -1."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        inside, outside = folder / "inside", folder / "outside"
        for each in (inside, outside):
            each.mkdir()
            (each / "file").touch(0o600)
        supervisor = Supervisor()
        child = os.fork()
        if child == 0:
            status = 3
            try:
                enter(supervisor.door, [inside])
                status = 4
                (inside / "file").chmod(0o640)
                try:
                    (outside / "file").chmod(0o640)
                except PermissionError:
                    status = 0
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(supervisor.attend(child))
        modes = [stat.S_IMODE((each / "file").stat().st_mode) for each in (inside, outside)]
    if status == 0 and modes == [0o640, 0o600]:
        return ""
    refused = "the kernel, or a seccomp profile, refuses seccomp with a listener"
    return refused if status == 3 else "the kernel took the filter, and calls are not handed on"


if __name__ == "__main__":
    sys.exit(_try() or 0)
