"""Removing big folders: moved aside in one step, so that they are gone for everybody, and removed in peace.

Removing takes long, and a name is free, or room is wanted, before it is done. What was moved lies in a folder of the
same volume (`cerebro.runtime.volumes.Volumes.trash`), where a process that comes later finds it again. Several
processes may move into the same trash, and empty it, at the same time.
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
"""After something could not be removed."""


def move_aside(folder: Path, trash: Path) -> bool:
    """Move a folder into the trash of its volume; whether there was one.

    Raises:
        OSError: the volume does not allow it.
    """
    while folder.exists():
        trash.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(trash / f"{folder.name}.{time.time_ns()}")
        except FileNotFoundError:
            continue  # the trash was removed in between, or somebody else was first
        return True
    return False


def empty(trash: Path) -> None:
    """Remove a trash with all that is in it, and what is moved there meanwhile.

    Raises:
        OSError: something cannot be removed.
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
    """A thread that empties trashes, one after another, while there are any.

    Attributes:
        thread: the newest, if one was ever begun.
    """

    def __init__(self) -> None:
        self.thread = threading.Thread()
        self._rests_until = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether it removes, or rests after something that it could not remove."""
        return self.thread.is_alive() or time.monotonic() < self._rests_until

    def sweep(self, trashes: Collection[Path]) -> bool:
        """Begin to empty those that there are, unless it is busy; whether there was none.

        Raises:
            OSError: whether there are any cannot be told.
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
                # Left for the next time: somebody has to mend the volume.
                log.warning("cannot remove %s: %s", trash, error)
                self._rests_until = time.monotonic() + _TRY_AGAIN_S
