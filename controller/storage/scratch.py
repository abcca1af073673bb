"""Scratch folders that are removed after their process has ended in any way.

Each process has a folder with a lock. The operating system releases the lock when the process ends, even on
another machine with the volume. Each new process removes unlocked folders.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cerebro.runtime.volume_errors import volume_errors_named

_PREFIX = ".scratch-"
_LOCK = "lock"


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Create a folder in `parent`, which is created if missing; remove it after use.

    Raises:
        StorageFullError: the volume is full.
    """
    with volume_errors_named(parent):
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(parent)
        folder, lock = _create_locked(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _create_locked(parent: Path) -> tuple[Path, int]:
    while True:
        folder = parent / f"{_PREFIX}{uuid.uuid4().hex}"
        folder.mkdir()
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # another process removed it as abandoned before it was locked
        with suppress(OSError):  # a volume without locks: nothing is ever removed there as abandoned
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)


def began(folder: Path) -> int:
    """Return a scratch folder's creation time, in nanoseconds of the volume's clock.

    Raises FileNotFoundError if it is gone.
    """
    return (folder / _LOCK).stat().st_mtime_ns


def remove_abandoned(parent: Path) -> None:
    """Remove unlocked folders in `parent`."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            continue  # already gone
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
