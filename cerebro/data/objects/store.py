"""`ObjectStore`, the read-only interface of `FolderStore` and `RemoteStore`, and their common rules.

Names of objects stay under the root, and copies appear atomically.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from cerebro.errors import LocatorError

CHUNK_BYTES = 1 << 20
"""Bytes per piece of a copy."""


class ObjectStore(Protocol):
    """Objects under one root. Safe to use from several threads; never writes to the store.

    Every method raises LocatorError for permanent faults (missing, forbidden, a name that leaves the root) and
    ObjectStoreError if the store fails after a limited number of retries.
    """

    uri: str

    def read(self, name: str) -> bytes:
        """Return the object's content."""

    def head(self, name: str, most: int) -> bytes:
        """Return the object's first bytes, at most `most`, with little further transfer."""

    def open(self, name: str) -> BinaryIO:
        """Open the object as a seekable file. Raises OSError in addition to the class's errors."""

    def fetch(self, name: str, destination: Path) -> None:
        """Copy the object to `destination`, atomically; create missing folders."""

    def exists(self, name: str) -> bool:
        """Return True if the object exists."""

    def size(self, name: str) -> int:
        """Return the bytes of the object."""

    def version(self, name: str) -> str:
        """Return a text that changes with the content: an ETag, or size and modification time."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield names that start with `prefix`, sorted."""

    def has_folder(self, name: str) -> bool:
        """Return True if `name` is a folder; in a bucket, if there are objects below it."""

    def in_folder(self, name: str) -> Iterator[str]:
        """Yield names of objects directly in a folder, sorted; "" is the root."""

    def folders(self, name: str) -> Iterator[str]:
        """Yield names of folders directly in a folder, sorted."""

    def check(self) -> None:
        """Require a readable root."""

    def local_root(self) -> Path | None:
        """Return the folder of the objects, or `None` if reading them as files needs a copy."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """One object: address, size in bytes, and a version that changes with the content."""

    uri: str
    num_bytes: int
    version: str


def object_name(name: str) -> str:
    """Return `name`, after checking that it stays under a root.

    Raises:
        LocatorError: it does not.
    """
    if ".." not in name and "\\" not in name and "\0" not in name and name[:1] not in ("", "/"):
        return name  # fast path for nearly all names; called for every row
    parts = name.split("/")
    if not any(parts) or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise LocatorError(
            f"object name {name!r} leaves its root: expected a relative path without '..', backslashes and NUL"
        )
    return name


def write_aside(destination: Path, chunks: Iterable[bytes]) -> None:
    """Write the chunks to a temporary file, then rename it to `destination`."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    aside = destination.with_name(f".{destination.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    try:
        with aside.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
        aside.replace(destination)
    finally:
        aside.unlink(missing_ok=True)
