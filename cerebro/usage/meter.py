"""A worker's processor time and memory, from the kernel's files (proc(5), Linux's admin-guide/cgroup-v1 and -v2).

A container is measured by its control group, whose counters are its own and include what has ended. Elsewhere the
group is shared with programs that are not Cerebro's (a login's session), so the processes below this one are added up.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cerebro.contract.records import WorkerUsage
from cerebro.usage.gpus import Gpus
from cerebro.usage.volumes import disk

log = logging.getLogger(__name__)

_Found = TypeVar("_Found")

PAUSE_S = 10.0
"""Between two measurements: a page shows them, nothing is decided on them."""

_UNLIMITED = 1 << 60
"""cgroup v1 has no word for it, only a number near 2^63."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the kernel's files are; tests give others.

    Attributes:
        proc: of the process file system.
        groups: mount point of the control groups, which in a container begins at its own.
    """

    proc: Path = Path("/proc")
    groups: Path = Path("/sys/fs/cgroup")


class Meter:
    """Measures one worker. To be used by one thread.

    Args:
        cores: that the worker may use.
        shards: its shard volume.
        gpus: see `Gpus`.
        is_container: whether the control group is the worker's own.
        pid: of the worker's first process.
    """

    def __init__(
        self,
        *,
        cores: int,
        shards: Path,
        gpus: Gpus,
        is_container: bool,
        sources: Sources = Sources(),
        pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cores, self._shards, self._gpus, self._clock = cores, shards, gpus, clock
        self._group = _Group(sources.groups) if is_container else None
        self._tree = _Tree(sources.proc, pid or os.getpid())
        self._proc = sources.proc
        self._before: tuple[float, float] | None = None
        """Time of the measurement before, and processor seconds until then."""

    def measure(self) -> WorkerUsage:
        """What is used now; processor time since the call before, so the first call knows none. Whatever fails is not
        measured, and keeps nothing else from being."""
        nothing: tuple[float | None, int | None] = (None, None)
        seconds, memory = self._tried((self._group or self._tree).measure, nothing)
        found = self._tried(lambda: disk(self._shards), None)
        return WorkerUsage(
            cores_used=self._cores_used(seconds),
            cores=self._cores,
            memory_bytes=memory,
            memory_limit_bytes=self._tried(self._limit, None),
            gpus=self._tried(self._gpus.measure, ()),
            # What is not to be had counts as used, as on every page: file systems hold a part back.
            shards_used_bytes=found.total - found.free if found else None,
            shards_total_bytes=found.total if found else None,
        )

    def _tried(self, measure: Callable[[], _Found], otherwise: _Found) -> _Found:
        try:
            return measure()
        except Exception:
            # Kernels and drivers say what they like; no page is worth a worker.
            log.exception("not measured")
            return otherwise

    def _cores_used(self, seconds: float | None) -> float | None:
        now, before = self._clock(), self._before
        if seconds is None:
            return None
        self._before = now, seconds
        if before is None or now <= before[0]:
            return None
        # Time of a process whose parent ended before it is lost to the sum: then too little is shown, once.
        return max(0.0, seconds - before[1]) / (now - before[0])

    def _limit(self) -> int | None:
        """The container's limit, or where there is none the machine's memory."""
        limit = self._group.limit() if self._group else None
        return limit if limit is not None else _field(self._proc / "meminfo", "MemTotal:", 1024)


class _Group:
    """The control group of a container, of either version."""

    def __init__(self, mount: Path) -> None:
        self._is_v2 = (mount / "cgroup.controllers").exists()
        self._memory = mount if self._is_v2 else mount / "memory"
        self._cpu = mount if self._is_v2 else mount / "cpuacct"

    def measure(self) -> tuple[float | None, int | None]:
        """Processor seconds since the group was made, and bytes of memory in use.

        Files that were read and could be dropped at once count to the group but are not in use: what remains is the
        "working set" by which the kubelet judges.
        """
        if self._is_v2:
            used = _field(self._cpu / "cpu.stat", "usage_usec", 1)
            seconds = None if used is None else used / 1e6
            memory, dropped = _number(self._memory / "memory.current"), "inactive_file"
        else:
            used = _number(self._cpu / "cpuacct.usage")
            seconds = None if used is None else used / 1e9
            memory, dropped = _number(self._memory / "memory.usage_in_bytes"), "total_inactive_file"
        if memory is not None:
            memory = max(0, memory - (_field(self._memory / "memory.stat", dropped, 1) or 0))
        return seconds, memory

    def limit(self) -> int | None:
        """Of memory in bytes; `None`: it has none."""
        found = _number(self._memory / ("memory.max" if self._is_v2 else "memory.limit_in_bytes"))
        return found if found is not None and found < _UNLIMITED else None


class _Tree:
    """A process and all below it."""

    def __init__(self, proc: Path, pid: int) -> None:
        self._proc, self._pid = proc, pid
        self._tick_s, self._page = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

    def measure(self) -> tuple[float | None, int | None]:
        """Processor seconds of those that run and of those they have waited for, and bytes of memory.

        Memory that processes have in common (libraries, what a fork has not written to, shared segments) is counted
        once, as the most that one of them shares.
        """
        ticks, private, shared, is_there = 0, 0, 0, False
        for pid in self._pids():
            try:
                fields = _stat(self._proc / str(pid) / "stat")
                pages = (self._proc / str(pid) / "statm").read_text().split()
            except OSError:  # it has ended
                continue
            is_there = True
            ticks += sum(map(int, fields[11:15]))
            private += int(pages[1]) - int(pages[2])
            shared = max(shared, int(pages[2]))
        return (ticks * self._tick_s, (private + shared) * self._page) if is_there else (None, None)

    def _pids(self) -> Iterator[int]:
        has_lists = (self._proc / str(self._pid) / "task" / str(self._pid) / "children").exists()
        children = self._listed if has_lists else self._searched()
        left = [self._pid]
        while left:
            pid = left.pop()
            yield pid
            left += children(pid)

    def _listed(self, pid: int) -> list[int]:
        """Children by the lists that each thread of a process has."""
        found: list[int] = []
        for path in (self._proc / str(pid) / "task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:  # the thread has ended
                continue
        return found

    def _searched(self) -> Callable[[int], list[int]]:
        """The same where the kernel keeps no such lists (CONFIG_PROC_CHILDREN): by the parents of all processes."""
        known: dict[int, list[int]] = {}
        for path in self._proc.glob("[0-9]*/stat"):
            try:
                fields = _stat(path)
            except OSError:
                continue
            known.setdefault(int(fields[1]), []).append(int(path.parent.name))
        return lambda pid: known.get(pid, [])


def _stat(path: Path) -> list[bytes]:
    """The fields behind a process' name, which stands in brackets and may hold any bytes (proc_pid_stat(5)).

    Raises:
        OSError: it has ended.
    """
    return path.read_bytes().rpartition(b")")[2].split()


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _field(path: Path, name: str, unit: int) -> int | None:
    """The number behind a name in a file of ``name number`` lines, in units of `unit`."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines)
    return next((int(words[1]) * unit for words in found if words[:1] == [name]), None)
