"""Looks into archives and unpacks them.

Unpacking is atomic: into a folder beside the destination, then one rename. Modes, owners and times of the
archive are not taken over; a file is 0644, or 0755 where its owner could run it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro.errors import ArchiveError
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.usercode.archive.rules import DEFAULT_LIMITS, ArchiveLimits, UnpackMeter

if TYPE_CHECKING:
    # Imported where archives are opened: services that only show sizes do without the libraries.
    from cerebro.usercode.archive.formats import Kind, Member

_ABANDONED_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class ArchiveMember:
    """One file: path within the archive with ``/``, and its size in bytes as measured."""

    name: str
    size: int


@dataclass(frozen=True, kw_only=True)
class ArchiveListing:
    """What `inspect` found.

    Attributes:
        kind: ``zip``, ``tar`` or ``tar.gz``.
        sha256: of the archive's bytes; its name in the store.
        archive_bytes: size as it travels.
        unpacked_bytes: sum of the files' sizes.
        members: files, by name.
    """

    kind: Kind
    sha256: str
    archive_bytes: int
    unpacked_bytes: int
    members: tuple[ArchiveMember, ...]


def inspect(
    content: bytes, *, name: str = "the archive", limits: ArchiveLimits = DEFAULT_LIMITS
) -> ArchiveListing:
    """List an archive after reading all of it under `limits`; writes nothing.

    Args:
        content: the archive's bytes.
        name: what messages call it.
        limits: bounds on size, count and ratio.

    Raises:
        ArchiveError: unknown kind, damaged, empty, too large, or with a member that is not harmless.
    """
    from cerebro.usercode.archive.formats import kind_of, members

    meter = UnpackMeter(archive=name, packed_bytes=len(content), limits=limits)
    found = [
        ArchiveMember(name=member.path.as_posix(), size=sum(map(len, member.chunks)))
        for member in members(content, meter)
        if not member.is_folder
    ]
    if not found:
        raise ArchiveError(f"{name} holds no files: pack the folder with the code again")
    return ArchiveListing(
        kind=kind_of(content, name),
        sha256=hashlib.sha256(content).hexdigest(),
        archive_bytes=len(content),
        unpacked_bytes=sum(member.size for member in found),
        members=tuple(sorted(found, key=lambda member: member.name)),
    )


def extract(
    content: bytes, destination: Path, *, name: str = "the archive", limits: ArchiveLimits = DEFAULT_LIMITS
) -> None:
    """Unpack into the folder `destination`, which appears complete or not at all.

    Calling again is safe and does nothing: an existing folder is taken for this archive's, so `destination`
    must be named for its content (`Volumes.archive`). Several processes may call at once; one of them wins.

    Raises:
        ArchiveError: as `inspect`.
        StorageFullError: the volume is full; nothing is left behind.
    """
    if destination.is_dir():
        return
    from cerebro.usercode.archive.formats import members

    with _storage_errors(name, destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination)
        aside = Path(tempfile.mkdtemp(dir=destination.parent, prefix=_aside_prefix(destination)))
        try:
            meter = UnpackMeter(archive=name, packed_bytes=len(content), limits=limits)
            for member in members(content, meter):
                _write(member, aside)
            aside.chmod(0o755)
            _publish(aside, destination)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _write(member: Member, root: Path) -> None:
    # `root` is new, holds no links and only what was written here; every path was checked to stay below it.
    path = root / member.path
    if member.is_folder:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for chunk in member.chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())  # else a power cut leaves empty files in a folder that looks complete
    path.chmod(0o755 if member.is_executable else 0o644)


def _publish(aside: Path, destination: Path) -> None:
    try:
        aside.rename(destination)
    except OSError:
        if not destination.is_dir():
            raise
        # Another process was first, with the same bytes.


def _aside_prefix(destination: Path) -> str:
    return f".{destination.name}.unpacking-"


def _sweep(destination: Path) -> None:
    # What a killed process left; younger ones may belong to a process that still unpacks.
    oldest = time.time() - _ABANDONED_S
    for aside in destination.parent.glob(_aside_prefix(destination) + "*"):
        with suppress(FileNotFoundError):  # another process has just published or removed it
            if aside.stat().st_mtime < oldest:
                shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _storage_errors(name: str, destination: Path) -> Iterator[None]:
    with volume_errors_named(destination.parent):
        yield
