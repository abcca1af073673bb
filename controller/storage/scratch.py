"""Room for files that nobody needs once their process has ended, however it ended.

A folder per process, with a lock that the operating system lets go when the process ends, also on another machine that
has the volume mounted. Whoever makes such a folder removes those that nobody holds.
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
    """A new folder in `parent`, which is made, too; removed with all that is in it at the end.

    Raises:
        StorageFullError: there is no room for it.
    """
    with volume_errors_named(parent):
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(parent)
        folder, lock = _made(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made(parent: Path) -> tuple[Path, int]:
    while True:
        folder = parent / f"{_PREFIX}{uuid.uuid4().hex}"
        folder.mkdir()
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # another process took it for abandoned before it was locked
        with suppress(
            OSError
        ):  # a volume without locks: nothing is removed there before its time, nor afterwards
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)


def began(folder: Path) -> int:
    """When a scratch folder was made, in nanoseconds of the volume's clock; FileNotFoundError if it is gone."""
    return (folder / _LOCK).stat().st_mtime_ns


def remove_abandoned(parent: Path) -> None:
    """Remove the folders in `parent` that nobody holds."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            continue  # it is gone by now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
