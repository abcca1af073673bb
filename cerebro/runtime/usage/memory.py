"""Memory as the kernel counts it: the control group's limit and OOM kills, and this process's peak.

The agent reads its group to explain killed children and to see when memory is short; child processes measure their own
peak. Nothing here ends a process.

A process that the kernel's OOM killer ends only shows SIGKILL, as any other killed one does; the counter of its control
group tells the difference. Read from cgroup v2 (``memory.events``, ``memory.max``; Linux's admin-guide/cgroup-v2) or v1
(``memory.oom_control``, ``memory.limit_in_bytes``). Without either, values are unknown.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_SCORE = Path("/proc/self/oom_score_adj")
_PROCESS = Path("/proc/self")
_OFFER, _MAX_SCORE = 500, 1000
"""OOM score offset (thousandths of all memory) of a child, and the kernel's maximum.

Half of all memory exceeds the agent's use. It is below the maximum, so that less important pods are still
killed first when a whole node runs short.
"""
_SHORT = 0.1
"""Free fraction below which memory is short."""
_UNLIMITED = 1 << 60
"""Limits from this value mean no limit: v1 then shows a number near 2^63."""


@dataclass(frozen=True, kw_only=True)
class MemoryGroup:
    """Control group of this process and its children.

    Attributes:
        events: file with a line ``oom_kill N``.
        limit: file with the limit in bytes.
        meminfo: file with the machine's memory.
    """

    events: Path
    limit: Path
    meminfo: Path = Path("/proc/meminfo")

    def kills(self) -> int | None:
        """Return the number of OOM kills in the group since its creation; `None` if not counted."""
        return fields(self.events).get("oom_kill")

    def is_short(self) -> bool:
        """True if less than a tenth of the group's limit, or of the machine's memory, is free."""
        machine = fields(self.meminfo)
        total, free = machine.get("MemTotal:"), machine.get("MemAvailable:")
        limit, used = self.limit_bytes(), self.used_bytes()
        return (total is not None and free is not None and free < total * _SHORT) or (
            limit is not None and used is not None and limit - used < limit * _SHORT
        )

    def used_bytes(self) -> int | None:
        """Return the group's "working set" in bytes, which the kubelet uses: without file cache that can be dropped."""
        folder = self.limit.parent
        for file, dropped in (
            ("memory.current", "inactive_file"),
            ("memory.usage_in_bytes", "total_inactive_file"),
        ):
            if (found := number(folder / file)) is not None:
                return max(0, found - fields(folder / "memory.stat").get(dropped, 0))
        return None

    def limit_bytes(self) -> int | None:
        """Return the group's limit; `None` without a limit."""
        found = number(self.limit)
        return found if found is not None and found < _UNLIMITED else None

    def usable_bytes(self) -> int | None:
        """Return the smaller of the group's limit and the machine's memory; `None` if both are unknown."""
        machine, limit = fields(self.meminfo).get("MemTotal:"), self.limit_bytes()
        found = [
            each for each in (limit, machine * 1024 if machine is not None else None) if each is not None
        ]
        return min(found, default=None)


def container_group(mount: Path) -> MemoryGroup:
    """Return the group of a container, whose mount point begins at its own group."""
    if (mount / "cgroup.controllers").exists():
        return MemoryGroup(events=mount / "memory.events", limit=mount / "memory.max")
    folder = mount / "memory"
    return MemoryGroup(events=folder / "memory.oom_control", limit=folder / "memory.limit_in_bytes")


def own_group(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> MemoryGroup:
    """Return the group of this process. If its files are missing, its values are unknown."""
    for line in _lines(membership):
        # number:controllers:path; v2 is number 0, without controllers.
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if "memory" in names:
            folder = _folder(mount / "memory", path, "memory.oom_control")
            return MemoryGroup(events=folder / "memory.oom_control", limit=folder / "memory.limit_in_bytes")
    path = next((line.split(":", 2)[2] for line in _lines(membership) if line.startswith("0::")), "/")
    folder = _folder(mount, path, "memory.events")
    return MemoryGroup(events=folder / "memory.events", limit=folder / "memory.max")


def offer_to_killer() -> None:
    """Make this process and its children the OOM killer's first choice, so that the agent survives to report.

    Raising one's own score needs no privilege. Does nothing without the file. Once per process.
    """
    with suppress(OSError, ValueError):
        _SCORE.write_text(str(min(_MAX_SCORE, int(_SCORE.read_text()) + _OFFER)))


def reset_peak() -> bool:
    """Reset the kernel's peak memory of this process (proc(5), ``clear_refs``).

    Returns False if the kernel does not; `peak_bytes` is meaningless then.
    """
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes(process: Path = _PROCESS) -> int:
    """Return the peak bytes of this process since `reset_peak`; 0 if unknown."""
    return fields(process / "status").get("VmHWM:", 0) * 1024


def own_resident() -> tuple[int, int]:
    """Return this process's resident bytes, and the part in files or shared memory."""
    found = fields(_PROCESS / "status")
    return found.get("VmRSS:", 0) * 1024, (found.get("RssFile:", 0) + found.get("RssShmem:", 0)) * 1024


def _folder(mount: Path, path: str, file: str) -> Path:
    # In a container the mount may start at its own group, but the path starts at the machine's root.
    inner = mount / path.strip().lstrip("/")
    return inner if (inner / file).exists() else mount


def number(path: Path) -> int | None:
    """Read the number in a file; `None` if it is missing or has other content."""
    found = next(iter(_lines(path)), "").strip()
    return int(found) if found.isdigit() else None


def fields(path: Path) -> dict[str, int]:
    """Read a file with a name and a number on each line."""
    pairs = (line.split() for line in _lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()  # a process has any bytes for its name
    except OSError:
        return []


def trim_heap() -> None:
    """Return the C library's free memory to the system. Other processes may need it."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
