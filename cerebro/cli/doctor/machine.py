"""Checks of ``cerebro doctor`` on this machine: cores, memory, sandbox, limits, clock, loopback interface, disks.

They read the system and create only temporary files. Machines of remote workers are not checked here: see
`cerebro.worker.health`.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cerebro.cli.doctor.check import Case, Finding, fail, ok, warn
from cerebro.cli.text import size
from cerebro.errors import ClusterError
from cerebro.local.supervision.ports import HOST
from cerebro.runtime.isolation import landlock, metadata_guard, sandbox_settings
from cerebro.runtime.usage.cores import available

_WORKER_BYTES = 1_000_000_000
"""Memory that a worker may need with a small model."""
_SHM_BYTES = 256_000_000
_SPACE_TIGHT_BYTES, _SPACE_NONE_BYTES = 5_000_000_000, 500_000_000
"""Free bytes of a disk below which to warn, and to fail."""
_FEWEST_FILES = 1024
_EARLIEST = 1_735_689_600.0  # 2025: a clock before that was never set.
_SKEW_S = 5.0
_REMOTE_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs"})


def cores(case: Case) -> Finding:
    """Check that each worker has a processor core."""
    number = available()
    if case.workers > number:
        return warn(
            f"{case.workers} workers share {number} core(s) and slow each other down",
            f"cerebro scale --workers {number}" if case.info else f"cerebro up --workers {number}",
        )
    return ok(f"{number} for {case.workers} worker(s)")


def memory(case: Case) -> Finding:
    """Check that the workers have memory for models and data."""
    available = _available_bytes()
    wanted = case.workers * _WORKER_BYTES
    if available < wanted and case.info is None:
        return warn(
            f"{size(available)} available, but {case.workers} workers may need {size(wanted)}",
            "end other programs, or start fewer workers: cerebro up --workers 1",
        )
    return ok(f"{size(available)} available")


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def shared_memory(case: Case) -> Finding:
    """Check that the processes of a worker can exchange batches."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        return fail("is missing or not writable", "mount -t tmpfs tmpfs /dev/shm")
    free = shutil.disk_usage(folder).free
    if free < _SHM_BYTES:
        return warn(
            f"only {size(free)} free: data loaders in user code may end with a bus error",
            "start the container with --shm-size=1g; outside a container, remove files from /dev/shm",
        )
    return ok(f"{size(free)} free")


def sandbox(case: Case) -> Finding:
    """Check that the kernel can keep user code away from the files of other experiments."""
    try:
        is_on = sandbox_settings.mode(case.environment)
        sandbox_settings.writable(case.environment)
    except ClusterError as error:
        return fail(str(error), f"unset {sandbox_settings.MODE}, or fix it")
    reason = landlock.why_not_enforced()
    if reason and is_on:
        return fail(
            f"{sandbox_settings.MODE} is on, but {reason}: workers do not start",
            f"fix that, or set {sandbox_settings.MODE}=off",
        )
    if reason:
        return ok(f"off; it could not be switched on: {reason}")
    abi = landlock.abi_version()
    weak = "; this kernel refuses all renames between folders in it" if abi < 2 else ""
    switch = "on" if is_on else f"off ({sandbox_settings.MODE}=on keeps user code from others' files)"
    if is_on and (missing := metadata_guard.why_unavailable()):
        return warn(
            f"on; Landlock {abi} works here{weak}; user code can change the mode of others' files: {missing}",
            "use the container runtime's present seccomp profile (RuntimeDefault)",
        )
    return ok(f"{switch}; Landlock {abi} works here{weak}")


def open_files(case: Case) -> Finding:
    """Check the limit of open files and connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FEWEST_FILES:
        return warn(f"a process may open {soft}", f"ulimit -n {max(_FEWEST_FILES, hard)}")
    return ok(f"a process may open {soft}")


def clock(case: Case) -> Finding:
    """Check that the clock is set and agrees with the home's file system."""
    now = time.time()
    if now < _EARLIEST:
        return fail(f"says {time.ctime(now)}", "set it: S3 and TLS refuse requests with a wrong time")
    try:
        with tempfile.NamedTemporaryFile(dir=_existing(case.home.path)) as file:
            written = Path(file.name).stat().st_mtime
    except OSError:  # `home_folder` reports it
        written = now
    if abs(written - now) > _SKEW_S:
        return warn(
            f"differs by {abs(written - now):.0f} s from that of the file system at {case.home.path}",
            "synchronise both with a time server (chrony, systemd-timesyncd)",
        )
    return ok(time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)))


def loopback(case: Case) -> Finding:
    """Check that programs on this machine can connect to each other."""
    try:
        with socket.create_server((HOST, 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=2).close()
    except OSError as cause:
        return fail(f"{HOST} cannot be used: {cause}", "ip link set lo up; check the firewall")
    return ok(f"{HOST} can be listened on and reached")


def home_folder(case: Case) -> Finding:
    """Check that the home is writable and on a local disk."""
    home = case.home.path
    base = _existing(home)
    elsewhere = "choose another folder: --home DIR or CEREBRO_HOME"
    if not base.is_dir():
        return fail(f"{base} is not a folder", elsewhere)
    try:
        tempfile.TemporaryFile(dir=base).close()
    except OSError as cause:
        return fail(f"{base} is not writable: {cause.strerror}", elsewhere)
    kind = _file_system(base)
    if kind in _REMOTE_FILE_SYSTEMS:
        return warn(
            f"{home} is on a network drive ({kind}): commits are slow, and locks may not work",
            "keep it on a local disk: --home DIR or CEREBRO_HOME",
        )
    return ok(f"{home}" if home.exists() else f"the first start creates {home}")


def space(case: Case) -> Finding:
    """Check that home and volumes can be written, and that their disks have space for data and checkpoints."""
    volumes = case.home.volumes
    for folder in sorted(volumes.iterdir()) if volumes.is_dir() else ():
        if folder.is_dir() and not os.access(folder, os.W_OK):
            return fail(f"{folder} is not writable", "mount it with write access, or change its mode")
    remedy = "remove experiments or files, or move the home to a larger disk: --home DIR or CEREBRO_HOME"
    disks = {_disk(folder): folder for folder in reversed([*_disks(case)])}
    tight = []
    for base in disks.values():
        free, inodes = shutil.disk_usage(base).free, os.statvfs(base)
        if free < _SPACE_NONE_BYTES:
            return fail(f"{size(free)} free at {base}: there is no space for checkpoints", remedy)
        if inodes.f_files and not inodes.f_favail:
            return fail(f"no inodes free at {base}", remedy)
        if free < _SPACE_TIGHT_BYTES:
            tight.append(f"{size(free)} free at {base}")
    if tight:
        return warn("; ".join(tight), remedy)
    base = _existing(case.home.path)
    return ok(f"{size(shutil.disk_usage(base).free)} free at {base}")


def _disks(case: Case) -> Iterator[Path]:
    """Yield folders that may be on separate disks: the home and all volumes."""
    yield _existing(case.home.path)
    for volumes in (case.home.volumes, Path(case.environment.get("CEREBRO_VOLUMES") or case.home.volumes)):
        if volumes.is_dir():
            yield from (volumes, *(folder for folder in sorted(volumes.iterdir()) if folder.is_dir()))


def _disk(folder: Path) -> int:
    """Return the kernel's number of a folder's disk."""
    return folder.stat().st_dev


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _file_system(path: Path) -> str:
    """Return the kind of the file system that holds `path`."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(fields[1]), fields[2]) for fields in mounts if path.is_relative_to(fields[1])]
    return max(above)[1] if above else "unknown"
