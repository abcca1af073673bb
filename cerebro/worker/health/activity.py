"""The state of processes in the kernel: computing, waiting, or in an uninterruptible wait. Reads ``/proc``.

`worker.agent.attempt_runner` uses it to tell a hung attempt from a busy one. Nothing here signals a process. Linux
only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class ProcessState(NamedTuple):
    """State of one process.

    Attributes:
        spent_s: processor time, including ended child processes.
        is_runnable: True if a thread runs or waits for a processor.
        is_in_kernel: True if the main thread is in an uninterruptible wait, as for a disk.
    """

    pid: int
    spent_s: float
    is_runnable: bool
    is_in_kernel: bool


class _Stat(NamedTuple):
    pid: int
    state: str
    parent: int
    group: int
    spent_s: float


def process_states(roots: Collection[int], *, proc: Path = Path("/proc")) -> list[ProcessState]:
    """List the processes in these groups and all their descendants, including those in other groups.

    Args:
        roots: process groups, each named by its first process.
        proc: the proc file system; for tests.
    """
    known = {stat.pid: stat for stat in _stats(proc)}
    members = {stat.pid for stat in known.values() if stat.group in roots or stat.pid in roots}
    below: dict[int, list[int]] = {}
    for stat in known.values():
        below.setdefault(stat.parent, []).append(stat.pid)
    pending = list(members)
    while pending:
        new = [pid for pid in below.get(pending.pop(), []) if pid not in members]
        members.update(new)
        pending += new
    return [_process_state(known[pid], proc) for pid in sorted(members)]


def waits_in(pid: int, *, proc: Path = Path("/proc")) -> str:
    """Return the kernel function of a waiting process, or "" if unknown."""
    with suppress(OSError):
        name = (proc / str(pid) / "wchan").read_text().strip()
        return "" if name == "0" else name
    return ""


def _process_state(stat: _Stat, proc: Path) -> ProcessState:
    is_runnable = stat.state == "R" or "R" in _thread_states(proc / str(stat.pid) / "task")
    return ProcessState(stat.pid, stat.spent_s, is_runnable, stat.state == "D")


def _thread_states(tasks: Path) -> set[str]:
    found = set()
    with suppress(OSError):
        for thread in tasks.iterdir():
            with suppress(OSError, ValueError, IndexError):  # it has ended
                found.add(_parsed((thread / "stat").read_bytes()).state)
    return found


def _stats(proc: Path) -> Iterable[_Stat]:
    for process in proc.iterdir():
        if process.name.isdigit():
            with suppress(OSError, ValueError, IndexError):  # it has ended
                yield _parsed((process / "stat").read_bytes())


def _parsed(content: bytes) -> _Stat:
    """Parse a stat file, proc_pid_stat(5). The name in parentheses may contain any character."""
    start, _, rest = content.decode(errors="replace").rpartition(")")
    fields = rest.split()
    spent = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return _Stat(int(start.split()[0]), fields[0], int(fields[1]), int(fields[2]), spent * _TICK_S)
