"""Files that exist completely or not at all: `DurableFile` writes them, `checksum` and `verify` check them.

A file is written under a temporary name in its folder, hashed, flushed to disk and renamed. A process killed at any
moment leaves the old or the new file, and at worst a temporary file for `discard_leftovers` or `discard_stale`. The
module does not know the meaning of the bytes; only `verify` assumes that they are preprocessed data.
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

from cerebro.errors import ShardCorruptError, VolumeError
from cerebro.runtime.volume_errors import NO_MEMORY, volume_errors_named

_LEFTOVER = ".aside"
BLOCK_BYTES = 512 << 10
"""Bytes per read: a block stays in the core's cache until it is hashed. Blocks of 4 MiB take 1.5 times as long."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """Size and checksum (`xxh3_64:<hex>`) of a written file."""

    num_bytes: int
    checksum: str


class DurableFile:
    """A file under a temporary name, with the methods that Arrow needs to write into it.

    Owned by one thread. `commit` makes the file appear as `path`.

    Args:
        path: final path.
        makes_folder: create a missing folder. Pass False if the folder may be deleted concurrently.

    Raises:
        VolumeError: the volume cannot be written now, or the folder is missing.
    """

    def __init__(self, path: Path, *, makes_folder: bool = True) -> None:
        self._path = path
        # Process id and random part: two attempts never share a name, on any machines.
        self._aside = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}{_LEFTOVER}")
        self._hash = xxhash.xxh3_64()
        self._num_bytes = 0
        self._has_room = False
        with volume_errors_named(path.parent):
            if makes_folder:
                path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file: BinaryIO = self._aside.open("xb")
            except FileNotFoundError as error:
                raise VolumeError.at(
                    f"the folder {path.parent} is missing: its experiment was deleted, or the volume is not mounted. "
                    "The work is tried again",
                    path.parent,
                ) from error

    @property
    def aside(self) -> Path:
        """Temporary path. Other writers open it to fill the bytes that `leave` skipped."""
        return self._aside

    @property
    def closed(self) -> bool:
        """True if the file is closed."""
        return self._file.closed

    def write(self, data: bytes | memoryview) -> int:
        """Append the data.

        Raises:
            StorageFullError: the volume is full.
        """
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
        """Skip bytes for other writers, who write before `commit`. `commit` then reads the file again to hash it.

        Raises:
            StorageFullError: the volume has no space for the buffered data.
        """
        with volume_errors_named(self._path.parent):
            self._file.seek(num_bytes, os.SEEK_CUR)
        self._has_room = True
        self._num_bytes += num_bytes

    def tell(self) -> int:
        """Return the number of bytes written or skipped."""
        return self._num_bytes

    def flush(self) -> None:
        """Flush buffered data to the operating system."""
        with volume_errors_named(self._path.parent):
            self._file.flush()

    def close(self) -> None:
        """Do nothing, because Arrow closes its sink before the content is known to be good; use `commit`."""

    def commit(self, *, sync_rename: bool = True, named: Callable[[Written], str] | None = None) -> Written:
        """Flush to disk and rename into place, replacing an earlier file.

        Args:
            sync_rename: flush the rename to disk. If False, a power cut may undo it until another file of the folder
                is committed with True: use False for files that nothing reads before their manifest is committed.
            named: returns the file's name from its size and checksum. Default: the name of `path`.
        """
        with volume_errors_named(self._path.parent):
            self._file.flush()
            digest = f"xxh3_64:{self._hash.hexdigest()}"
            if self._has_room:
                digest = checksum(self._aside).checksum
            os.fsync(self._file.fileno())
            self._file.close()
            written = Written(num_bytes=self._num_bytes, checksum=digest)
            self._aside.replace(self._path if named is None else self._path.with_name(named(written)))
            if sync_rename:
                sync_folder(self._path.parent)
        return written

    def discard(self) -> None:
        """Remove the temporary file. Safe to call twice, and after `commit`."""
        try:
            self._file.close()
        except OSError:  # the buffered rest does not fit the disk and is not needed
            pass
        self._aside.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> Written:
    """Replace a file by a JSON object, durably and atomically."""
    file = DurableFile(path)
    try:
        file.write(json.dumps(value, indent=1).encode())
        return file.commit()
    finally:
        file.discard()


def sync_folder(folder: Path) -> None:
    """Make renames within a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> Written:
    """Return the size and checksum of a file on disk."""
    with path.open("rb", buffering=0) as file:
        return checksum_of(file)


def checksum_of(file: RawIOBase, on_block: Callable[[memoryview], None] = lambda block: None) -> Written:
    """Return the size and checksum of an open file, from its current position.

    Args:
        on_block: receives each block of `BLOCK_BYTES`; the last may be shorter. The memory is reused after the call.
    """
    digest, size = xxhash.xxh3_64(), 0
    buffer = memoryview(bytearray(BLOCK_BYTES))
    while block := fill(file, buffer):
        digest.update(block)
        on_block(block)
        size += len(block)
    return Written(num_bytes=size, checksum=f"xxh3_64:{digest.hexdigest()}")


def fill(file: RawIOBase | BufferedIOBase, buffer: memoryview) -> memoryview:
    """Read until `buffer` is full or the file ends; return the filled part."""
    count = 0
    while count < len(buffer) and (read := file.readinto(buffer[count:])):
        count += read
    return buffer[:count]


def verify(path: Path, written: Written) -> None:
    """Require that a file of a data set still has the size and checksum it was written with.

    Raises:
        ShardCorruptError: it differs or is unreadable.
        VolumeError: the volume cannot be read at the moment.
    """
    try:
        with volume_errors_named(path, also=NO_MEMORY):  # the error of a read has no file name
            actual = checksum(path)
    except OSError as error:
        raise ShardCorruptError.at(
            f"{path} cannot be read ({error}): preprocess the data again", path
        ) from error
    if actual != written:
        raise ShardCorruptError.at(
            f"{path} has {actual.num_bytes} bytes with checksum {actual.checksum}, "
            f"but {written.num_bytes} with {written.checksum} were written: preprocess the data again",
            path,
        )


def discard_leftovers(folder: Path, of: str = "*", by: int | None = None) -> None:
    """Remove temporary files of killed writers. Only the folder's single owner may call this.

    Args:
        folder: where to look.
        of: name of the final file. Default: any.
        by: process id of the writer. Default: any.
    """
    for path in folder.glob(f".{of}.{'*' if by is None else f'{by}-*'}{_LEFTOVER}"):
        path.unlink(missing_ok=True)


def discard_stale(folder: Path, before: float) -> list[Path]:
    """Remove temporary files without a write since `before`; their writers are dead.

    For folders with several writers. Files that cannot be removed stay.

    Args:
        before: seconds since the epoch.

    Returns:
        The removed files.
    """
    removed = []
    for path in folder.glob(f".*{_LEFTOVER}"):
        with suppress(OSError):  # committed or discarded concurrently
            if path.stat(follow_symlinks=False).st_mtime < before:
                path.unlink()
                removed.append(path)
    return removed
