"""`RemoteStore`, the base class of stores that are no folders: `S3Store`, and stores of packages.

A subclass implements `info`, `part` and `list`. The other methods of `ObjectStore` follow from these; a subclass may
replace one by a faster one. Read-only.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cerebro.data.objects.store import CHUNK_BYTES, object_name, write_aside
from cerebro.errors import LocatorError, ObjectStoreError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Info(NamedTuple):
    """Facts of an object.

    Attributes:
        num_bytes: size in bytes.
        version: text that changes with the content, such as an ETag.
    """

    num_bytes: int
    version: str


class RemoteStore(ABC):
    """Objects under one root, such as ``gs://bucket/folder``, as a package adds them for its scheme.

    `cerebro.testing.check_store` tests a subclass. Objects of it are used from several threads. Names of objects are
    relative to the root and checked: they do not leave it. Raise `cerebro.errors.LocatorError` for permanent faults,
    such as missing credentials, and `cerebro.errors.ObjectStoreError` for faults that may pass, after some retries.

    Args:
        uri: the root's address. Every character stands for itself.

    Example:
        >>> class MemoryStore(RemoteStore):
        ...     objects = {"a.txt": b"12345", "b/c.txt": b"678"}
        ...     def info(self, name):
        ...         content = self.objects.get(name)
        ...         return None if content is None else Info(len(content), str(hash(content)))
        ...     def part(self, name, start, most):
        ...         content = self.objects[name]
        ...         return content[start : start + most]
        ...     def list(self, prefix=""):
        ...         return iter(sorted(name for name in self.objects if name.startswith(prefix)))
        >>> store = MemoryStore("memory://")
        >>> store.read("a.txt"), store.exists("b"), [*store.folders("")]
        (b'12345', False, ['b'])
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    # --- a subclass implements these ---

    @abstractmethod
    def info(self, name: str) -> Info | None:
        """Return size and version of an object; `None` if it does not exist."""

    @abstractmethod
    def part(self, name: str, start: int, most: int) -> bytes:
        """Return at most `most` bytes from offset `start`, which is inside the object."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield names that start with `prefix`, sorted by their characters."""

    # --- a subclass may replace these ---

    def in_folder(self, name: str) -> Iterator[str]:
        """Yield names of objects directly in a folder, sorted; "" is the root."""
        prefix = _folder(name)
        return (each for each in self.list(prefix) if each != prefix and "/" not in each[len(prefix) :])

    def folders(self, name: str) -> Iterator[str]:
        """Yield names of folders directly in a folder, sorted; "" is the root."""
        prefix, last = _folder(name), ""
        for each in self.list(prefix):
            folder, slash, _ = each[len(prefix) :].partition("/")
            if slash and folder != last:
                last = folder
                yield prefix + folder

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield an object's content in pieces; they are of one version."""
        found = self._existing(name)
        for start in range(0, found.num_bytes, CHUNK_BYTES):
            yield self.part(name, start, CHUNK_BYTES)
        if found.num_bytes > CHUNK_BYTES and self._existing(name) != found:
            raise ObjectStoreError(f"{self._where(name)} changed while it was read: try again later")

    # --- the rest of `ObjectStore` ---

    def read(self, name: str) -> bytes:
        """Return the object's content."""
        return b"".join(self.chunks(object_name(name)))

    def head(self, name: str, most: int) -> bytes:
        """Return the object's first bytes, at most `most`."""
        found = self._existing(name)
        return self.part(name, 0, min(most, found.num_bytes)) if found.num_bytes else b""

    def open(self, name: str) -> BinaryIO:
        """Open the object as a file; each non-sequential read is a request."""
        return BufferedReader(_File(self, name, self.size(name)), CHUNK_BYTES)

    def fetch(self, name: str, destination: Path) -> None:
        """Copy the object to `destination`, atomically."""
        write_aside(destination, self.chunks(object_name(name)))

    def exists(self, name: str) -> bool:
        """Return True if the object exists."""
        return self.info(object_name(name)) is not None

    def size(self, name: str) -> int:
        """Return the bytes of the object."""
        return self._existing(name).num_bytes

    def version(self, name: str) -> str:
        """Return a text that changes with the content."""
        return self._existing(name).version

    def has_folder(self, name: str) -> bool:
        """Return True if there are objects below `name`."""
        return next(self.list(_folder(name)), None) is not None

    def check(self) -> None:
        """Require a readable root. A root without any object counts as missing."""
        if next(iter(self.list("")), None) is None:
            raise LocatorError(f"there are no objects under {self.uri}: check the locator")

    def local_root(self) -> None:
        """Return `None`: reading objects as files needs a copy."""
        return

    def _existing(self, name: str) -> Info:
        found = self.info(object_name(name))
        if found is None:
            raise LocatorError(f"{self._where(name)} does not exist: check the locator")
        return found

    def _where(self, name: str) -> str:
        return f"{self.uri.rstrip('/')}/{name}"


def _folder(name: str) -> str:
    return f"{object_name(name)}/" if name else ""


class _File(RawIOBase):
    """An object as a file that reads ranges."""

    def __init__(self, store: RemoteStore, name: str, size: int) -> None:
        self._store, self._name, self._at, self._size = store, name, 0, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        if self._at >= self._size or not view:
            return 0
        content = self._store.part(self._name, self._at, min(len(view), self._size - self._at))
        view[: len(content)] = content
        self._at += len(content)
        return len(content)
