"""What the process that looks at users' locators may open.

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
from pathlib import Path
from typing import BinaryIO

from cerebro.data.objects import ObjectStore, is_bucket, local_path
from cerebro.data.objects.folder import FolderStore
from cerebro.data.objects.s3 import S3Store
from cerebro.data.safe_open import open_below, open_folder_below
from cerebro.errors import LocatorError

_NOT_DATA = ("/proc", "/sys", "/dev")


class NotLookedAtError(Exception):
    """It cannot be looked at from here, which does not mean that it is wrong; the message says why."""


def root_of(uri: str, shared: Path | None) -> ObjectStore:
    """The root that objects lie under: of folders only `shared` and those in it, or any where that is None.

    Raises:
        NotLookedAtError: nothing of the kind may be looked at here.
        LocatorError: it is no address of data.
    """
    if is_bucket(uri):
        return _bucket(uri)
    path = local_path(uri)
    if shared is None:
        return _LocalFolder(uri)
    if not path.is_relative_to(shared) or ".." in path.parts:
        raise NotLookedAtError(
            f"This page sees only the shared volume ({shared}) of the cluster. Whether the workers can read {uri} "
            "shows when the first run starts"
        )
    return _SharedFolder(uri, shared)


_bucket = functools.cache(S3Store)
"""By its address: a client takes a tenth of a second to make."""


class _LocalFolder(FolderStore):
    """A folder of the user's own machine; a link may lead anywhere but into the system."""

    def open(self, name: str) -> BinaryIO:
        """The object as a file."""
        self._require_data(self._path(name))
        return super().open(name)

    def size(self, name: str) -> int:
        """Bytes of the object."""
        self._require_data(self._path(name))
        return super().size(name)

    def check(self) -> None:
        """Raise unless the root is there and may be read."""
        self._require_data(self._root)
        super().check()

    def _require_data(self, path: Path) -> None:
        if any(path.resolve().is_relative_to(part) for part in _NOT_DATA):
            raise LocatorError(f"{path} is part of the system, not data")


class _SharedFolder(FolderStore):
    """A folder of the shared volume. User code writes there, so links are not followed: not even those that appear
    between a look and the next."""

    def __init__(self, uri: str, shared: Path) -> None:
        super().__init__(uri)
        self._shared = shared

    def open(self, name: str) -> BinaryIO:
        """The object as a file."""
        with self._no_link():
            return open_below(self._shared, str(self._path(name).relative_to(self._shared)))

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        return stat.S_ISREG(self._mode(name))

    def has_folder(self, name: str) -> bool:
        """Whether ``name`` is a folder."""
        return stat.S_ISDIR(self._mode(name))

    def in_folder(self, name: str) -> Iterator[str]:
        """Names of the files that lie directly in a folder (empty: the root), in order; and of links, which `open`
        refuses."""
        place = self._path(name) if name else self._root
        with self._translated(name), self._folder(place) as folder, os.scandir(folder) as entries:
            found = sorted(
                entry.name for entry in entries if entry.is_file(follow_symlinks=False) or entry.is_symlink()
            )
        yield from (f"{name}/{each}" if name else each for each in found)

    def folders(self, name: str) -> Iterator[str]:
        """Names of the folders that lie directly in a folder, in order; no links."""
        with (
            self._translated(name),
            self._folder(self._path(name)) as folder,
            os.scandir(folder) as entries,
        ):
            found = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        yield from (f"{name}/{each}" for each in found)

    def size(self, name: str) -> int:
        """Bytes of the object."""
        with self._translated(name), self.open(name) as file:
            return os.fstat(file.fileno()).st_size

    def check(self) -> None:
        """Raise unless the root is there and may be read."""
        if self._root.resolve() != self._shared.resolve() / self._root.relative_to(self._shared):
            raise self._linked()
        super().check()

    def _mode(self, name: str) -> int:
        """What is there, as `os.stat` tells it; 0 if there is nothing."""
        path = self._path(name)
        try:
            with self._folder(path.parent) as folder:
                mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0
        if stat.S_ISLNK(mode):
            raise self._linked()
        return mode

    @contextmanager
    def _folder(self, path: Path) -> Iterator[int]:
        inner = path.relative_to(self._shared).as_posix()
        with self._no_link():
            folder = open_folder_below(self._shared, "" if inner == "." else inner)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _no_link(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise self._linked() from error
            raise

    def _linked(self) -> NotLookedAtError:
        return NotLookedAtError(f"{self.uri} leads through a link, which this page does not follow")
