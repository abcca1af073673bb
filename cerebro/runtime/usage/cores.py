"""Processor cores available to a process, and machines with more compute threads than cores.

Worker settings and `cerebro up` count `available` cores; `cerebro status` and `cerebro doctor` warn with `crowded`.
Excess threads do not share cores fairly: threads of one torch operation wait for each other by spinning, so two workers
with all cores each train four to six times slower than with half of the cores each.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cerebro.contract.records import WorkerStatus


def of_machine() -> int:
    """Count the machine's cores available to this process (taskset, cpusets)."""
    return len(os.sched_getaffinity(0))


def available(*, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores that this process and its control group may keep busy together, at least one.

    Args:
        proc: mount point of the process file system; for tests.
        groups: mount point of the control groups.
    """
    quota = min(_quotas(proc, groups), default=float("inf"))
    return max(1, int(min(quota, of_machine())))


def arithmetic(*, proc: Path = Path("/proc")) -> str:
    """Return a digest of the processor's model and instructions; "" if unknown.

    Libraries choose their code, and so their rounding, by these facts.

    Args:
        proc: as in `available`.
    """
    first = _text(proc / "cpuinfo").partition("\n\n")[0]
    facts = dict(line.partition(":")[::2] for line in first.splitlines())
    values = {name.strip(): " ".join(sorted(value.split())) for name, value in facts.items()}
    named = [value for name in _FACTS if (value := values.get(name))]
    return hashlib.sha256("/".join([platform.machine(), *named]).encode()).hexdigest()[:12] if named else ""


_FACTS = ("model name", "vendor_id", "cpu family", "model", "flags", "CPU part", "CPU variant", "Features")
"""Fields of /proc/cpuinfo that the digest covers, on x86 and on Arm."""


def crowded(workers: Iterable[WorkerStatus]) -> list[str]:
    """Return a line per machine whose workers compute with more threads than its cores.

    Workers that only preprocess do not count: they share a pod with a training worker and wait while it
    trains.
    """
    machines: dict[str, list[WorkerStatus]] = defaultdict(list)
    for status in workers:
        if "train" in status.record.kinds and status.record.machine_cores and not status.is_lost:
            machines[status.record.host].append(status)
    lines = []
    for host, found in sorted(machines.items()):
        threads = sum(status.record.cores for status in found)
        cores = max(status.record.machine_cores for status in found)
        if threads > cores:
            who = "1 worker computes" if len(found) == 1 else f"{len(found)} workers compute"
            lines.append(f"{who} with {threads} threads on the {cores} core(s) of {host or 'one machine'}")
    return lines


def _quotas(proc: Path, groups: Path) -> Iterable[float]:
    """Yield the core limits of this process's group and its parent groups, which limit it too.

    Sources: cgroups(7), Linux's admin-guide/cgroup-v2 and scheduler/sched-bwc.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = groups / "cpu" if controllers else groups
        place = mount / path.lstrip("/")
        while place.is_relative_to(mount):
            quota, period = _v1(place) if controllers else _v2(place)
            if quota.isdecimal() and period.isdecimal() and int(period):
                yield int(quota) / int(period)
            if place == mount:
                break
            place = place.parent


def _v1(group: Path) -> tuple[str, str]:
    return _text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us").strip()


def _v2(group: Path) -> tuple[str, str]:
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    return quota, period


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not this cgroup version, or the group is not visible here
        return ""
