"""Files that are there in full or not at all.

A file is written under a name of its own beside its place, hashed on the way, flushed to the disk and
renamed. A process killed at any moment leaves the previous file, or the new one, and at worst a leftover that
`discard_leftovers` removes. What the files mean is not known here.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedIOBase, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from cerebro.errors import ShardCorruptError
from cerebro.runtime.volume_errors import NO_MEMORY, volume_errors_named

_LEFTOVER = ".aside"
BLOCK_BYTES = 512 << 10
"""Of reading: stays in a core's own cache between reading and hashing; eight times as much takes half as long again."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What became of a file: its size, and the checksum of its bytes as ``xxh3_64:<hex>``."""

    num_bytes: int
    checksum: str


class DurableFile:
    """A file being written aside; Arrow can write into it (it has the methods of a binary file).

    Owned by one thread. `commit` makes it appear under ``path``; without it nothing does.

    Args:
        makes_folder: else the folder has to be there. For a writer who may be late: what was removed stays removed.
    """

    def __init__(self, path: Path, *, makes_folder: bool = True) -> None:
        self._path = path
        # Process and random part: two attempts at the same file, on whatever machines, never share a name.
        self._aside = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}{_LEFTOVER}")
        self._hash = xxhash.xxh3_64()
        self._num_bytes = 0
        self._has_room = False
        with volume_errors_named(path.parent):
            if makes_folder:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._aside.open("xb")

    @property
    def aside(self) -> Path:
        """Where it is until it is committed: for who writes into room that was left in it."""
        return self._aside

    @property
    def closed(self) -> bool:
        """Whether no more can be written."""
        return self._file.closed

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``; StorageFullError when the volume is full."""
        try:
            self._file.write(data)
        except OSError:
            with volume_errors_named(self._path.parent):
                raise
        self._hash.update(data)
        size = memoryview(data).nbytes
        self._num_bytes += size
        return size

    def leave(self, num_bytes: int) -> None:
        """Leave room that others fill before `commit`, which then reads the whole file to hash it.

        Raises:
            StorageFullError: the volume has no room for what was written before.
        """
        with volume_errors_named(self._path.parent):
            self._file.seek(num_bytes, os.SEEK_CUR)
        self._has_room = True
        self._num_bytes += num_bytes

    def tell(self) -> int:
        """Bytes written so far, with room that was left."""
        return self._num_bytes

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        with volume_errors_named(self._path.parent):
            self._file.flush()

    def close(self) -> None:
        """Do nothing: Arrow closes its sink before it is known whether the content is good (`commit`)."""

    def commit(self, *, sync_rename: bool = True, named: Callable[[Written], str] | None = None) -> Written:
        """Flush to the disk and rename into place, replacing what was there.

        Args:
            named: gives the file's name, where that tells what is in it; else it is that of ``path``.

        With ``sync_rename=False`` the new name may be lost in a power cut, until another file of the folder is
        committed: for files that count only with a manifest beside them.
        """
        with volume_errors_named(self._path.parent):
            self._file.flush()
            found = f"xxh3_64:{self._hash.hexdigest()}"
            if self._has_room:
                found = checksum(self._aside).checksum
            os.fsync(self._file.fileno())
            self._file.close()
            written = Written(num_bytes=self._num_bytes, checksum=found)
            self._aside.replace(self._path if named is None else self._path.with_name(named(written)))
            if sync_rename:
                sync_folder(self._path.parent)
        return written

    def discard(self) -> None:
        """Leave no trace. Safe to call twice, and after `commit`."""
        try:
            self._file.close()
        except OSError:  # what the buffer still held does not fit the disk; it is not wanted any more
            pass
        self._aside.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> Written:
    """Replace ``path`` by ``value`` as JSON, durably and in one step."""
    file = DurableFile(path)
    try:
        file.write(json.dumps(value, indent=1).encode())
        return file.commit()
    finally:
        file.discard()


def sync_folder(folder: Path) -> None:
    """Make renames within ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path, on_block: Callable[[memoryview], None] = lambda block: None) -> Written:
    """Size and checksum of a file as it is on disk.

    Args:
        on_block: is shown every `BLOCK_BYTES` of the file, of which the last may be fewer, to be used at once.
    """
    with path.open("rb", buffering=0) as file:
        return checksum_of(file, on_block)


def checksum_of(file: RawIOBase, on_block: Callable[[memoryview], None] = lambda block: None) -> Written:
    """`checksum` of an open file, from where it is."""
    digest, size = xxhash.xxh3_64(), 0
    buffer = memoryview(bytearray(BLOCK_BYTES))
    while block := fill(file, buffer):
        digest.update(block)
        on_block(block)
        size += len(block)
    return Written(num_bytes=size, checksum=f"xxh3_64:{digest.hexdigest()}")


def fill(file: RawIOBase | BufferedIOBase, buffer: memoryview) -> memoryview:
    """Read until `buffer` is full or the file ends; returns the part of `buffer` that was filled."""
    count = 0
    while count < len(buffer) and (read := file.readinto(buffer[count:])):
        count += read
    return buffer[:count]


def verify(path: Path, written: Written) -> None:
    """Raise ShardCorruptError unless the file holds what was once written; VolumeError if it cannot be read now."""
    try:
        with volume_errors_named(path, also=NO_MEMORY):  # an error of a read names no file
            found = checksum(path)
    except OSError as error:
        raise ShardCorruptError.at(f"{path} cannot be read ({error}): it must be made again", path) from error
    if found != written:
        raise ShardCorruptError.at(
            f"{path} has {found.num_bytes} bytes with checksum {found.checksum}, "
            f"but {written.num_bytes} with {written.checksum} were written: it must be made again",
            path,
        )


def discard_leftovers(folder: Path, of: str = "*", by: int | None = None) -> None:
    """Remove what killed writers left in ``folder``; of one file, or of one process, if it is named. Only for its one
    owner."""
    for path in folder.glob(f".{of}.{'*' if by is None else f'{by}-*'}{_LEFTOVER}"):
        path.unlink(missing_ok=True)


def discard_stale(folder: Path, before: float) -> list[Path]:
    """Remove what writers left in ``folder`` and have not written to since ``before`` (seconds since the epoch): where
    several may write, those are dead. What cannot be removed stays.

    Returns:
        What was removed.
    """
    removed = []
    for path in folder.glob(f".*{_LEFTOVER}"):
        with suppress(OSError):  # it was committed or discarded meanwhile
            if path.stat(follow_symlinks=False).st_mtime < before:
                path.unlink()
                removed.append(path)
    return removed
