"""Objects of a shard's rows, fetched ahead of the row function.

`shard.Preprocessor` and `fit_pass.FitPass` open a `ShardObjects` for some rows. Objects in a folder are not copied: the
row function reads the folder itself. Objects of a remote store are copied to the shard's own folder, with limits on
read-ahead and concurrency, and removed with the shard. Does not call row functions.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from os.path import normpath
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cerebro.data.objects import ObjectStore, object_name
from cerebro.errors import LocatorError
from cerebro.runtime.volume_errors import volume_errors_named

_AHEAD = 4  # objects fetched ahead, in multiples of those fetched at a time


class ShardObjects:
    """The objects of some rows, as a context manager. Used by one thread.

    Args:
        store: object store; None without object columns.
        rows: metadata rows of the shard.
        columns: columns that name objects: a name, a list of names, or null.
        folder: for copies; created when needed, removed at exit.
        concurrency: number of concurrent downloads.

    Attributes:
        is_local: True if no copies are needed.
    """

    def __init__(
        self,
        store: ObjectStore | None,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        folder: Path,
        concurrency: int,
    ) -> None:
        self._store, self._rows, self._columns, self._folder = store, rows, columns, folder
        root = None if store is None else store.local_root()
        self.is_local = root is not None or store is None
        self._window = concurrency * _AHEAD
        self._fetched: dict[str, Future[None]] = {}
        self._copied_as: dict[str, str] = {}
        """Path in `folder` -> object name. ``a//b`` and ``a/b`` are two keys of a bucket and one path."""
        self._ahead: deque[int] = deque()
        """Rows after the current one that are the first to name an object, once per object."""
        self._next_row = 0
        self._pool = None if self.is_local else ThreadPoolExecutor(concurrency, "cerebro-fetch")
        self.folder = str(folder if root is None else root)

    def wait(self, position: int) -> None:
        """Return when the objects of the row at ``position`` of the shard lie in `folder`.

        Raises:
            LocatorError: one has a name that leaves the root, or cannot be fetched: missing, forbidden.
            ObjectStoreError: the store did not answer properly.
            StorageFullError: the volume is full.
        """
        if not self._columns or self._store is None:
            return
        names = self._names(position)
        if self.is_local:
            return  # the row function itself will find a missing object
        self._fetch_ahead(position)
        for name in names:
            if (other := self._copied_as[normpath(name)]) != name:
                raise LocatorError(
                    f"the objects {other!r} and {name!r} would be copied to one file: rename one of them"
                )
            self._fetched[name].result()

    def __enter__(self) -> Self:
        if not self.is_local:
            shutil.rmtree(self._folder, ignore_errors=True)
            with volume_errors_named(self._folder.parent):
                self._folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _names(self, position: int) -> list[str]:
        names: list[str] = []
        for column in self._columns:
            value = self._rows[position][column]
            if value is None:
                continue
            for name in value if isinstance(value, list) else [value]:
                if not isinstance(name, str):
                    raise LocatorError(f"column {column!r} names the object {name!r}, expected a string")
                names.append(object_name(name))
        return names

    def _fetch_ahead(self, position: int) -> None:
        """Request the objects of this row and the next ones, in row order."""
        assert self._pool is not None
        while self._ahead and self._ahead[0] <= position:
            self._ahead.popleft()
        while self._next_row < len(self._rows) and (
            self._next_row <= position or len(self._ahead) < self._window
        ):
            try:
                names = self._names(self._next_row)
            except LocatorError:
                names = []  # raised when it is this row's turn
            for name in names:
                if self._copied_as.setdefault(normpath(name), name) == name not in self._fetched:
                    self._fetched[name] = self._pool.submit(self._fetch, name)
                    if self._next_row > position:
                        self._ahead.append(self._next_row)
            self._next_row += 1

    def _fetch(self, name: str) -> None:
        assert self._store is not None
        with volume_errors_named(self._folder):
            self._store.fetch(name, self._folder / name)
