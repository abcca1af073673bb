"""A folder on this machine as an `ObjectStore`, and the meaning of plain paths and ``file://`` addresses."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from cerebro.data.objects.store import CHUNK_BYTES, object_name, write_aside
from cerebro.errors import LocatorError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class FolderStore:
    """Files under a folder as objects; names are relative paths, and links are followed."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._root = local_path(uri)

    def read(self, name: str) -> bytes:
        """Return the object's content."""
        with self._translated(name), self.open(name) as file:
            return file.read()

    def head(self, name: str, most: int) -> bytes:
        """Return the object's first bytes, at most `most`."""
        with self._translated(name), self.open(name) as file:
            return file.read(most)

    def fetch(self, name: str, destination: Path) -> None:
        """Copy the object to `destination`, atomically."""
        with self._translated(name), self.open(name) as source:
            write_aside(destination, iter(lambda: source.read(CHUNK_BYTES), b""))

    def open(self, name: str) -> BinaryIO:
        """Open the object as a file.

        Raises:
            OSError: the file is missing or not a plain file.
        """
        # Non-blocking, because opening a pipe would block.
        descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise IsADirectoryError
        return os.fdopen(descriptor, "rb")

    def exists(self, name: str) -> bool:
        """Return True if the object exists."""
        return self._path(name).is_file()

    def size(self, name: str) -> int:
        """Return the bytes of the object."""
        with self._translated(name):
            path = self._path(name)
            if path.is_dir():
                raise IsADirectoryError
            return path.stat().st_size

    def version(self, name: str) -> str:
        """Return a text that changes with the content: size and modification time."""
        with self._translated(name):
            status = self._path(name).stat()
        return f"{status.st_size}-{status.st_mtime_ns}"

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield names that start with `prefix`, sorted."""
        self.check()
        names = (path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())
        yield from sorted(name for name in names if name.startswith(prefix))

    def has_folder(self, name: str) -> bool:
        """Return True if `name` is a folder."""
        return self._path(name).is_dir()

    def in_folder(self, name: str) -> Iterator[str]:
        """Yield names of files directly in a folder, sorted; "" is the root."""
        folder = self._path(name) if name else self._root
        with self._translated(name), os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file())
        yield from (f"{name}/{each}" if name else each for each in names)

    def folders(self, name: str) -> Iterator[str]:
        """Yield names of folders directly in a folder, sorted."""
        with self._translated(name), os.scandir(self._path(name)) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        yield from (f"{name}/{each}" for each in names)

    def check(self) -> None:
        """Require a readable root.

        Raises:
            LocatorError: the root is missing or unreadable.
        """
        if not self._root.is_dir():
            raise LocatorError(f"object root {self.uri} is not a folder: check the locator")
        if not os.access(self._root, os.R_OK | os.X_OK):
            raise LocatorError(
                f"object root {self.uri} is not readable for this user: change its permissions"
            )

    def local_root(self) -> Path:
        """Return the folder."""
        return self._root

    def _path(self, name: str) -> Path:
        return self._root / object_name(name)

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        where = f"{self._root / name}"
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LocatorError(f"{where} does not exist: check the locator or put the file there") from error
        except IsADirectoryError as error:
            raise LocatorError(
                f"{where} is a folder or a device, expected a file: check the locator"
            ) from error
        except PermissionError as error:
            raise LocatorError(f"{where} is not readable for this user: change its permissions") from error


def local_path(uri: str) -> Path:
    """Return the absolute path that a plain path or ``file://`` address means.

    Every character stands for itself, also ``#``, ``?`` and ``;``. The exception is ``%20`` and its like in a
    ``file://`` address: a name is decoded if the literal name does not exist and the decoded name does.

    Raises:
        LocatorError: the address is of another kind.
    """
    if uri[:6].lower() == "file:/":
        machine, slash, path = uri[7:].partition("/") if uri[6:7] == "/" else ("", "/", uri[6:])
        if machine not in {"", "localhost"} or not slash:
            raise LocatorError(f"{uri} names another machine: expected file:///absolute/path")
        return _unescaped(path)
    if has_scheme(uri):
        raise LocatorError(f"{uri} is not a path that Cerebro knows: expected a path, file:// or s3://")
    try:
        return Path(uri).expanduser().absolute()
    except RuntimeError as error:
        raise LocatorError(
            f"{uri} names the home of an unknown user: for a folder of this name write ./{uri}"
        ) from error


def has_scheme(uri: str) -> bool:
    """True if an address begins with a scheme, as in ``s3://bucket/key``."""
    return _SCHEME.match(uri) is not None


def _unescaped(path: str) -> Path:
    """Decode the names of an absolute path that do not exist literally."""
    resolved = Path("/")
    for name in path.split("/"):
        plain = unquote(name)
        is_escape = plain not in (name, ".", "..") and "/" not in plain and "\0" not in plain
        resolved /= (
            plain if is_escape and not _is_there(resolved / name) and _is_there(resolved / plain) else name
        )
    return resolved


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long
        return False
