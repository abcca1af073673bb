"""A worker's processor time and memory, by its control group (Linux's admin-guide/cgroup-v1, -v2) or its processes.

A container is measured by its control group, whose counters are its own and include what has ended. Elsewhere the
group is shared with programs that are not Cerebro's (a login's session), so the processes below this one are added up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from cerebro.contract.records import WorkerUsage
from cerebro.runtime.usage.gpus import Gpus
from cerebro.runtime.usage.memory import container_group, fields, number
from cerebro.runtime.usage.volumes import disk

log = logging.getLogger(__name__)

_Found = TypeVar("_Found")

PAUSE_S = 10.0
"""Between two measurements: a page shows them, nothing is decided on them."""


class UsageMeter:
    """Measures one worker. To be used by one thread.

    Args:
        cores: that the worker may use.
        shards: its shard volume.
        gpus: see `Gpus`.
        is_container: whether the control group is the worker's own.
        groups: mount point of the control groups, which in a container begins at its own; tests give others.
        process: the worker's first one.
    """

    def __init__(
        self,
        *,
        cores: int,
        shards: Path,
        gpus: Gpus,
        is_container: bool,
        groups: Path = Path("/sys/fs/cgroup"),
        process: psutil.Process | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cores, self._shards, self._gpus, self._clock = cores, shards, gpus, clock
        self._group = _Group(groups) if is_container else None
        self._process = process or psutil.Process()
        self._before: tuple[float, float] | None = None
        """Time of the measurement before, and processor seconds until then."""

    def measure(self) -> WorkerUsage:
        """What is used now; processor time since the call before, so the first call knows none. Whatever fails is not
        measured, and keeps nothing else from being."""
        nothing: tuple[float | None, int | None] = (None, None)
        group = self._group
        seconds, memory = self._tried(group.measure if group else lambda: _tree(self._process), nothing)
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

    def gpu_share(self, number: int) -> float | None:
        """How much of the last moment a GPU computed; `None`: it does not say."""
        return self._tried(lambda: self._gpus.used_share(number), None)

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
        limit = self._group.memory.limit_bytes() if self._group else None
        return limit if limit is not None else psutil.virtual_memory().total


class _Group:
    """The control group of a container, of either version."""

    def __init__(self, mount: Path) -> None:
        self.memory = container_group(mount)
        self._mount = mount

    def measure(self) -> tuple[float | None, int | None]:
        """Processor seconds since the group was made, and bytes of memory in use."""
        microseconds = fields(self._mount / "cpu.stat").get("usage_usec")
        nanoseconds = number(self._mount / "cpuacct" / "cpuacct.usage")
        seconds = nanoseconds / 1e9 if nanoseconds is not None else None
        return seconds if microseconds is None else microseconds / 1e6, self.memory.used_bytes()


def _tree(process: psutil.Process) -> tuple[float | None, int | None]:
    """Processor seconds of a process and all below it, and of those that they have waited for; and bytes of memory.

    Memory that processes have in common (libraries, what a fork has not written to, shared segments) is counted once,
    as the most that one of them shares.
    """
    seconds, private, shared = 0.0, 0, 0
    try:
        found = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None, None
    for each in found:
        try:
            times, memory = each.cpu_times(), each.memory_info()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
        private += memory.rss - memory.shared
        shared = max(shared, memory.shared)
    return seconds, private + shared
