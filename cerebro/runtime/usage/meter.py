"""Measure a worker's processor time and memory, by its control group or its processes.

`Housekeeping` calls `UsageMeter.measure` every 10 s and reports the result for pages and Prometheus; nothing is decided
on it. The agent also asks for `gpu_share` to judge a hang.

A container has its own control group (Linux's admin-guide/cgroup-v1, -v2), with counters that include ended processes.
Elsewhere the group contains other programs (a login session), so this sums this process and its descendants.
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
"""Seconds between two measurements."""


class UsageMeter:
    """Measures one worker. Only one thread calls `measure`.

    Args:
        cores: number of cores that the worker may use.
        shards: its shard volume.
        gpus: see `Gpus`.
        is_container: True if the control group is the worker's own.
        groups: mount point of the control groups; in a container it begins at the container's own group.
        process: the worker's first process; default: this process.
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
        self._previous: tuple[float, float] | None = None
        """Time of the previous measurement, and the processor seconds until then."""

    def measure(self) -> WorkerUsage:
        """Measure the present usage. Processor time counts from the previous call, so the first call has none.

        A failed measurement does not prevent the others.
        """
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
            # Reserved space counts as used, as on every page: file systems reserve a part.
            shards_used_bytes=found.total - found.free if found else None,
            shards_total_bytes=found.total if found else None,
        )

    def gpu_share(self, number: int) -> float | None:
        """Return the fraction of recent time that a GPU computed; `None` if unknown."""
        return self._tried(lambda: self._gpus.used_share(number), None)

    def _tried(self, measure: Callable[[], _Found], otherwise: _Found) -> _Found:
        try:
            return measure()
        except Exception:
            # Kernels and drivers return unexpected values; a measurement must not end the worker.
            log.exception("not measured")
            return otherwise

    def _cores_used(self, seconds: float | None) -> float | None:
        now, previous = self._clock(), self._previous
        if seconds is None:
            return None
        self._previous = now, seconds
        if previous is None or now <= previous[0]:
            return None
        # The sum loses the time of a process whose parent ended first; then one measurement is too low.
        return max(0.0, seconds - previous[1]) / (now - previous[0])

    def _limit(self) -> int | None:
        limit = self._group.memory.limit_bytes() if self._group else None
        return limit if limit is not None else psutil.virtual_memory().total


class _Group:
    """The control group of a container, of either version."""

    def __init__(self, mount: Path) -> None:
        self.memory = container_group(mount)
        self._mount = mount

    def measure(self) -> tuple[float | None, int | None]:
        """Return processor seconds since the group's creation, and bytes of used memory."""
        microseconds = fields(self._mount / "cpu.stat").get("usage_usec")
        nanoseconds = number(self._mount / "cpuacct" / "cpuacct.usage")
        seconds = nanoseconds / 1e9 if nanoseconds is not None else None
        return seconds if microseconds is None else microseconds / 1e6, self.memory.used_bytes()


def _tree(process: psutil.Process) -> tuple[float | None, int | None]:
    """Return processor seconds and memory bytes of a process tree, including ended children.

    Memory shared between processes (libraries, copy-on-write pages, shared segments) counts once, as the
    largest shared amount of one process.
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
