"""Find, signal and end processes of this machine by `ProcessId`, which a later process with the same pid never equals.

Used by the supervisor, the launcher and the command line, for processes that need not be their children. It reads
``/proc`` and sends signals through pidfds. Linux 5.3 or newer only: the supervisor's promise to leave nothing behind
rests on it. Starting processes is in `service_process`.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MARKER = "CEREBRO_SERVICE_OF"
"""Environment variable with the home of a process's cluster; children inherit it."""

_PROC = Path("/proc")
_STATE, _PARENT, _START_TICKS = 0, 1, 19  # positions in /proc/PID/stat after the name
_GONE = frozenset({"Z", "X"})
_NO_PROCESS = frozenset({errno.ESRCH, errno.ENOENT, errno.EINVAL})
"""Errors of `pidfd_open` for a pid that no process has: none, or only a thread (ENOENT; EINVAL before Linux 6.15)."""


@dataclass(frozen=True)
class ProcessId:
    """A pid, with the boot and clock tick of the process's start."""

    pid: int
    started: str


@cache
def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessId | None:
    """Identify the process with this pid; `None` if it does not exist or is a zombie."""
    fields = _stat(pid)
    if not fields or fields[_STATE] in _GONE:
        return None
    return ProcessId(pid, f"{_boot()}/{fields[_START_TICKS]}")


def _stat(pid: int) -> list[str]:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # the process name before it may contain brackets and spaces


def is_alive(process: ProcessId) -> bool:
    """True if this process still runs."""
    return identify(process.pid) == process


def send(process: ProcessId, signum: signal.Signals) -> bool:
    """Send a signal to this process. Return False if it is gone.

    Raises:
        PermissionError: it runs as another user.
    """
    descriptor = _open(process)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_gone(process: ProcessId, timeout_s: float) -> bool:
    """Block until the process has ended, at most `timeout_s` seconds. Return True if it has ended."""
    descriptor = _open(process)
    if descriptor is None:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(max(timeout_s, 0.0) * 1000))
    finally:
        os.close(descriptor)


def _open(process: ProcessId) -> int | None:
    """Return a pidfd of this very process. It is checked after opening, when the pid can no longer be reused."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno in _NO_PROCESS:
            return None
        raise
    if is_alive(process):
        return descriptor
    os.close(descriptor)
    return None


def end(processes: Iterable[ProcessId], *, grace_s: float) -> tuple[ProcessId, ...]:
    """Send SIGTERM, and SIGKILL after `grace_s` seconds. Return the processes still running."""
    running = [process for process in processes if send(process, signal.SIGTERM)]
    for signum, timeout_s in ((None, grace_s), (signal.SIGKILL, 5.0)):
        if signum is not None:
            running = [process for process in running if send(process, signum)]
        deadline = time.monotonic() + timeout_s
        running = [process for process in running if not wait_gone(process, deadline - time.monotonic())]
    return tuple(running)


def marked(home: Path) -> tuple[ProcessId, ...]:
    """Return all processes of this user that the cluster at `home` started, directly or indirectly."""
    needle = f"\0{MARKER}={home}\0".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # another user's, or gone
            continue
        if needle in b"\0" + environment:
            process = identify(int(entry.name))
            if process is not None and process.pid != os.getpid():
                found.append(process)
    return tuple(found)


def orphans(home: Path, supervisor: int) -> tuple[ProcessId, ...]:
    """Return processes of the cluster at `home` that no longer descend from the process `supervisor`."""
    return tuple(process for process in marked(home) if not _descends(process.pid, supervisor))


def resident_bytes(pids: Iterable[int]) -> dict[int, int]:
    """Return the resident bytes of each process and its descendants; shared pages count several times."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[_PARENT])
    totals = dict.fromkeys(pids, 0)
    for pid in parents:
        above = pid
        while above > 1 and above not in totals:
            above = parents.get(above, 0)
        if above in totals:
            totals[above] += _resident(pid)
    return totals


def _resident(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        fields = _stat(pid)
        if not fields:
            return False
        pid = int(fields[_PARENT])
        if pid == ancestor:
            return True
    return False
