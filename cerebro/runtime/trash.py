"""Remove large folders: rename them into a trash in one step, then delete them in the background.

Workers remove data sets with it (`upkeep.shard_space`), and the controller deleted experiments (`storage.deletion`).
Deleting takes long, and the name is free at once. The trash is a folder of the same volume
(`cerebro.runtime.volumes.Volumes.trash`), so a later process finds its content. Several processes may fill and empty
the same trash at once.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger(__name__)

_TRY_AGAIN_S = 10.0
"""Seconds without a new removal after one failed."""


def move_aside(folder: Path, trash: Path) -> bool:
    """Move a folder into the trash of its volume. Return True if the folder existed.

    Raises:
        OSError: the volume does not allow it.
    """
    while folder.exists():
        trash.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(trash / f"{folder.name}.{time.time_ns()}")
        except FileNotFoundError:
            continue  # another process removed the trash or its entry first
        return True
    return False


def empty(trash: Path) -> None:
    """Remove a trash with its content, including folders added during the removal.

    Raises:
        OSError: an entry cannot be removed.
    """
    while trash.exists():
        try:
            for path in trash.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        except FileNotFoundError:
            continue  # another process on this volume removes it, too
        _remove_if_empty(trash)


def _remove_if_empty(trash: Path) -> None:
    try:
        trash.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise


class Removal:
    """A background thread that empties trashes, one after another.

    Attributes:
        thread: the newest thread; not started before the first removal.
    """

    def __init__(self) -> None:
        self.thread = threading.Thread()
        self._rests_until = 0.0

    @property
    def is_busy(self) -> bool:
        """True while it removes, or pauses after a failed removal."""
        return self.thread.is_alive() or time.monotonic() < self._rests_until

    def sweep(self, trashes: Collection[Path]) -> bool:
        """Start emptying existing trashes, unless already busy. Return True if there are no trashes.

        Raises:
            OSError: a trash's existence cannot be determined.
        """
        if self.is_busy:
            return False
        found = [trash for trash in trashes if trash.exists()]
        if found:
            self.thread = threading.Thread(target=self._empty, args=(found,), name="removal", daemon=True)
            self.thread.start()
        return not found

    def _empty(self, trashes: Collection[Path]) -> None:
        for trash in trashes:
            try:
                empty(trash)
            except OSError as error:
                # Retry next time: the volume needs repair.
                log.warning("cannot remove %s: %s", trash, error)
                self._rests_until = time.monotonic() + _TRY_AGAIN_S
