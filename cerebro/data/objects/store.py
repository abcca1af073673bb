"""What an object store is, and the rules all kinds share: names stay under the root, copies appear whole."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from cerebro.errors import LocatorError

CHUNK_BYTES = 1 << 20
"""Objects are copied in pieces of this size."""


class ObjectStore(Protocol):
    """Objects under one root. Safe to use from several threads; never writes to the store.

    Every method raises LocatorError for what asking again cannot mend (absent, forbidden, a name that leaves
    the root) and ObjectStoreError when the store did not answer properly after bounded retries.
    """

    uri: str

    def read(self, name: str) -> bytes:
        """The object's content."""

    def head(self, name: str, most: int) -> bytes:
        """The object's first bytes, at most so many; of the rest next to nothing is transferred."""

    def open(self, name: str) -> BinaryIO:
        """The object as a file that is read from any place; raises OSError beside the errors of the others."""

    def fetch(self, name: str, destination: Path) -> None:
        """Copy the object to ``destination``, which appears whole or not at all; folders are made."""

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""

    def size(self, name: str) -> int:
        """Bytes of the object."""

    def version(self, name: str) -> str:
        """Changes when the object's content does: an ETag, or size and time of change."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Names that start with ``prefix``, in order."""

    def has_folder(self, name: str) -> bool:
        """Whether ``name`` is a folder: for a bucket, whether there are objects below it."""

    def in_folder(self, name: str) -> Iterator[str]:
        """Names of the objects that lie directly in a folder (empty: the root), in order; none below its folders."""

    def folders(self, name: str) -> Iterator[str]:
        """Names of the folders that lie directly in a folder, in order."""

    def check(self) -> None:
        """Raise unless the root is there and may be read."""

    def local_root(self) -> Path | None:
        """The folder the objects lie in, where no copy is needed to read them as files."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """One object: its address, size in bytes, and a version that changes with its content."""

    uri: str
    num_bytes: int
    version: str


def object_name(name: str) -> str:
    """``name`` if it stays under a root, LocatorError otherwise."""
    if ".." not in name and "\\" not in name and "\0" not in name and name[:1] not in ("", "/"):
        return name  # nearly always, and asked for every row
    parts = name.split("/")
    if not any(parts) or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise LocatorError(
            f"object name {name!r} leaves its root: expected a relative path without '..', backslashes and NUL"
        )
    return name


def write_aside(destination: Path, chunks: Iterable[bytes]) -> None:
    """Write ``chunks`` to a file that appears under ``destination`` when all of them are there."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    aside = destination.with_name(f".{destination.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    try:
        with aside.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
        aside.replace(destination)
    finally:
        aside.unlink(missing_ok=True)
