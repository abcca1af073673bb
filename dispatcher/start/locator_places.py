"""Where a locator leads, and what of it this process may look at.

On the user's own machine that is what the user may read. On a cluster it is the shared volume, without links, and not
the dispatcher's own files. What of the network is reached, `dispatcher.start.locator_network` decides.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from cerebro.data.objects import object_name
from cerebro.data.objects.folder import local_path
from cerebro.data.objects.s3 import S3Store, is_forbidden
from cerebro.errors import LocatorError
from dispatcher.sandbox.opening import open_below

_MOST_ENTRIES = 2_000
"""Entries of folders that are looked at for one object."""
_NOT_DATA = ("/proc", "/sys", "/dev")


class UnseenError(Exception):
    """It cannot be looked at from here, which does not mean that it is wrong; the message says why."""


class Place(Protocol):
    """One address: a file, or a root that objects lie under. Raises `LocatorError` for what is not there."""

    uri: str

    def size(self) -> int:
        """Bytes of the file."""

    def read(self, most: int) -> bytes:
        """The file's content, at most so many bytes."""

    def check(self) -> None:
        """Raise unless it is a root that can be read."""

    def object_size(self, name: str) -> int | None:
        """Bytes of an object under this root; None if there is none of that name."""

    def first_name(self) -> str | None:
        """Name of any object under this root."""

    def below(self, name: str) -> Place:
        """The object of that name."""


def place_of(uri: str, shared: str | None) -> Place:
    """The place of an address.

    Args:
        shared: the folder that may be looked into; None: any folder.

    Raises:
        UnseenError: nothing of the kind may be looked at here.
    """
    if uri.startswith("s3://"):
        return _Bucket(uri, is_own=shared is None)
    path = local_path(uri)
    if shared is None:
        if any(path.resolve().is_relative_to(part) for part in _NOT_DATA):
            raise LocatorError(f"{uri} is part of the system, not data")
        return _Folder(uri, path, root=None)
    if not path.is_relative_to(shared) or ".." in path.parts:
        raise UnseenError(
            f"This page sees only the shared volume ({shared}) of the cluster. Whether the workers can read {uri} "
            "shows when the first run starts"
        )
    return _Folder(uri, path, root=Path(shared))


class _Folder:
    """A path. With a `root` it is opened from there, following no link."""

    def __init__(self, uri: str, path: Path, *, root: Path | None) -> None:
        self.uri, self._path, self._root = uri, path, root

    def size(self) -> int:
        with self._open() as file:
            return os.fstat(file.fileno()).st_size

    def read(self, most: int) -> bytes:
        with self._open() as file:
            return file.read(most)

    def check(self) -> None:
        if self._root is not None and self._path.resolve() != self._root.resolve() / self._path.relative_to(
            self._root
        ):
            raise UnseenError(f"{self.uri} leads through a link, which this page does not follow")
        if not self._path.is_dir():
            raise LocatorError(f"object root {self.uri} is not a folder: check the locator")
        if not os.access(self._path, os.R_OK | os.X_OK):
            raise LocatorError(f"object root {self.uri} may not be read by this user: change its permissions")

    def object_size(self, name: str) -> int | None:
        try:
            return self.below(name).size()
        except (LocatorError, UnseenError):
            return None

    def first_name(self) -> str | None:
        waiting, left = [self._path], _MOST_ENTRIES
        while waiting and left > 0:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_file(follow_symlinks=False):
                        return Path(entry.path).relative_to(self._path).as_posix()
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    if left <= 0:
                        break
        return None

    def below(self, name: str) -> Place:
        relative = PurePosixPath(object_name(name))
        return _Folder(f"{self.uri.rstrip('/')}/{relative}", self._path / relative, root=self._root)

    def _open(self) -> BinaryIO:
        try:
            if self._root is not None:
                return open_below(self._root, str(self._path.relative_to(self._root)))
            # Not blocking: a pipe would be waited for.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.fdopen(descriptor, "rb")
            os.close(descriptor)
        except PermissionError as error:
            raise LocatorError(f"{self.uri} may not be read by this user: change its permissions") from error
        except OSError as error:
            if self._root is not None and error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise UnseenError(
                    f"{self.uri} leads through a link, which this page does not follow"
                ) from error
            raise LocatorError(
                f"{self.uri} does not exist: check the locator or put the file there"
            ) from error
        raise LocatorError(f"{self.uri} is a folder or a device, expected a file: check the locator")


_store = functools.cache(S3Store)
"""By its root: a client takes a tenth of a second to make."""


class _Bucket:
    """An address in an object store: the store's root, and a name.

    Unless the keys are the user's own (`is_own`) others may read what they may not.
    """

    def __init__(self, uri: str, *, is_own: bool) -> None:
        self.uri, self._is_own = uri.rstrip("/"), is_own
        root, _, self._name = self.uri.rpartition("/")
        self._parent = root

    def size(self) -> int:
        with self._asked():
            return _store(self._file_root()).size(self._name)

    def read(self, most: int) -> bytes:
        with self._asked():
            return _store(self._file_root()).head(self._name, most)

    def check(self) -> None:
        with self._asked():
            _store(self.uri).check()

    def object_size(self, name: str) -> int | None:
        try:
            with self._asked():
                return _store(self.uri).size(object_name(name))
        except LocatorError:
            return None

    def first_name(self) -> str | None:
        with self._asked():
            return next(iter(_store(self.uri).list()), None)

    def below(self, name: str) -> Place:
        return _Bucket(f"{self.uri}/{object_name(name)}", is_own=self._is_own)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except LocatorError as error:
            if self._is_own or not is_forbidden(error):
                raise
            raise UnseenError(
                f"This page's keys do not open it, which those of the workers may: {error}"
            ) from error

    def _file_root(self) -> str:
        if self._parent in ("s3:/", "s3:"):
            raise LocatorError(f"{self.uri} names no object: expected s3://bucket/name")
        return self._parent
