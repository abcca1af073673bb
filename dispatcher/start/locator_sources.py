"""Data that `locator_process` may open when it reads locators.

On the user's own machine: everything that the user can read except system folders. On a cluster: the shared volume
without links. Object stores are not limited here, but by `dispatcher.start.locator_network`.
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

from cerebro.data.files.safe_open import open_below, open_folder_below
from cerebro.data.objects import ObjectStore, is_bucket, is_s3, local_path
from cerebro.data.objects.folder import FolderStore
from cerebro.data.objects.s3 import S3Store
from cerebro.errors import LocatorError

_NOT_DATA = ("/proc", "/sys", "/dev")


class NotCheckedError(Exception):
    """The data cannot be checked from here. The message says why; it may be correct nevertheless."""


def root_of(uri: str, shared: Path | None) -> ObjectStore:
    """Return the object root of a locator. With `shared`, only folders on the shared volume are allowed.

    Raises:
        NotCheckedError: the root cannot be checked from here.
        LocatorError: the locator is not an address of data.
    """
    if is_s3(uri):
        return _bucket(uri)
    if is_bucket(uri):
        raise NotCheckedError(
            f"This page can check paths and s3:// only. Workers read {uri} by a package when the first run starts"
        )
    path = local_path(uri)
    if shared is None:
        return _LocalFolder(uri)
    if not path.is_relative_to(shared) or ".." in path.parts:
        raise NotCheckedError(
            f"This page can check only the shared volume ({shared}) of the cluster. Workers read {uri} when the first "
            "run starts"
        )
    return _SharedFolder(uri, shared)


_bucket = functools.cache(S3Store)
"""Cached, because creating a client takes a tenth of a second."""


class _LocalFolder(FolderStore):
    """A folder of the user's machine. Links may lead anywhere except into system folders."""

    def open(self, name: str) -> BinaryIO:
        self._require_data(self._path(name))
        return super().open(name)

    def size(self, name: str) -> int:
        self._require_data(self._path(name))
        return super().size(name)

    def check(self) -> None:
        self._require_data(self._root)
        super().check()

    def _require_data(self, path: Path) -> None:
        if any(path.resolve().is_relative_to(part) for part in _NOT_DATA):
            raise LocatorError(f"{path} is part of the system, not data")


class _SharedFolder(FolderStore):
    """A folder of the shared volume. User code writes there, so links are never followed, even if they appear later."""

    def __init__(self, uri: str, shared: Path) -> None:
        super().__init__(uri)
        self._shared = shared

    def open(self, name: str) -> BinaryIO:
        with self._no_link():
            return open_below(self._shared, str(self._path(name).relative_to(self._shared)))

    def exists(self, name: str) -> bool:
        return stat.S_ISREG(self._mode(name))

    def has_folder(self, name: str) -> bool:
        return stat.S_ISDIR(self._mode(name))

    def in_folder(self, name: str) -> Iterator[str]:
        """Yield the names of files directly in a folder (by default the root), sorted. Includes links, which `open`
        refuses.
        """
        path = self._path(name) if name else self._root
        with self._translated(name), self._folder(path) as folder, os.scandir(folder) as entries:
            found = sorted(
                entry.name for entry in entries if entry.is_file(follow_symlinks=False) or entry.is_symlink()
            )
        yield from (f"{name}/{each}" if name else each for each in found)

    def folders(self, name: str) -> Iterator[str]:
        """Yield the names of folders directly in a folder, sorted, without links."""
        with (
            self._translated(name),
            self._folder(self._path(name)) as folder,
            os.scandir(folder) as entries,
        ):
            found = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        yield from (f"{name}/{each}" for each in found)

    def size(self, name: str) -> int:
        with self._translated(name), self.open(name) as file:
            return os.fstat(file.fileno()).st_size

    def check(self) -> None:
        if self._root.resolve() != self._shared.resolve() / self._root.relative_to(self._shared):
            raise self._link_error()
        super().check()

    def _mode(self, name: str) -> int:
        """Return `st_mode`, or 0 for a missing path."""
        path = self._path(name)
        try:
            with self._folder(path.parent) as folder:
                mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0
        if stat.S_ISLNK(mode):
            raise self._link_error()
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
                raise self._link_error() from error
            raise

    def _link_error(self) -> NotCheckedError:
        return NotCheckedError(f"{self.uri} contains a link, which this page does not follow")
