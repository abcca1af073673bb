"""Inspection and unpacking of archives.

`pack` and the dispatcher's pages call `inspect`, which writes nothing. The agent (`worker.agent.environment`) and
`usercode.in_process` call `extract`. Unpacking is atomic: into a temporary folder, then one rename. Modes, owners and
times are not copied; a file gets 0644, or 0755 if its owner could execute it.
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
    # Imported only for opening archives, so that services which show sizes do not load the libraries.
    from cerebro.usercode.archive.formats import Kind, Member

_ABANDONED_S = 3600.0
"""Minimum age in seconds of a temporary folder that counts as left by a killed process."""


@dataclass(frozen=True, kw_only=True)
class ArchiveMember:
    """One file: path within the archive with `/`, and measured size in bytes."""

    name: str
    size: int


@dataclass(frozen=True, kw_only=True)
class ArchiveListing:
    """Result of `inspect`.

    Attributes:
        kind: `zip`, `tar` or `tar.gz`.
        sha256: hash of the archive's bytes, and its name in the store.
        archive_bytes: size of the archive.
        unpacked_bytes: total size of the files.
        members: files, sorted by name.
    """

    kind: Kind
    sha256: str
    archive_bytes: int
    unpacked_bytes: int
    members: tuple[ArchiveMember, ...]


def inspect(
    content: bytes, *, name: str = "the archive", limits: ArchiveLimits = DEFAULT_LIMITS
) -> ArchiveListing:
    """Read the full archive under `limits` and list it, without writing anything.

    Args:
        content: the archive's bytes.
        name: name of the archive for messages.
        limits: limits of size, count and ratio.

    Raises:
        ArchiveError: the archive has an unknown kind, is damaged, empty or too large, or has a harmful member.
    """
    from cerebro.usercode.archive.formats import kind_of, members

    meter = UnpackMeter(archive=name, packed_bytes=len(content), limits=limits)
    listed = [
        ArchiveMember(name=member.path.as_posix(), size=sum(map(len, member.chunks)))
        for member in members(content, meter)
        if not member.is_folder
    ]
    if not listed:
        raise ArchiveError(f"{name} holds no files: pack the folder with the code again")
    return ArchiveListing(
        kind=kind_of(content, name),
        sha256=hashlib.sha256(content).hexdigest(),
        archive_bytes=len(content),
        unpacked_bytes=sum(member.size for member in listed),
        members=tuple(sorted(listed, key=lambda member: member.name)),
    )


def extract(
    content: bytes, destination: Path, *, name: str = "the archive", limits: ArchiveLimits = DEFAULT_LIMITS
) -> None:
    """Unpack into the folder `destination`, all or nothing.

    Calling again does nothing, because an existing folder counts as complete. So `destination` must be named after the
    content (`Volumes.archive`). Several processes may call this at the same time; one of them wins.

    Raises:
        ArchiveError: as `inspect`.
        StorageFullError: the volume is full; nothing remains.
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
    # `root` is new and has no links, and every path was checked to stay below it.
    path = root / member.path
    if member.is_folder:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for chunk in member.chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())  # a power cut could otherwise leave empty files in a complete folder
    path.chmod(0o755 if member.is_executable else 0o644)


def _publish(aside: Path, destination: Path) -> None:
    try:
        aside.rename(destination)
    except OSError:
        if not destination.is_dir():
            raise
        # Another process published the same bytes first.


def _aside_prefix(destination: Path) -> str:
    return f".{destination.name}.unpacking-"


def _sweep(destination: Path) -> None:
    # Remove folders of killed processes; newer ones may be in use.
    oldest = time.time() - _ABANDONED_S
    for aside in destination.parent.glob(_aside_prefix(destination) + "*"):
        with suppress(FileNotFoundError):  # another process has just published or removed it
            if aside.stat().st_mtime < oldest:
                shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _storage_errors(name: str, destination: Path) -> Iterator[None]:
    with volume_errors_named(destination.parent):
        yield
