"""Files of volumes that user code writes to, opened without trusting what it left there."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_below(root: Path, path: str) -> io.BufferedReader:
    """Open a plain file below `root`, following no link on the way.

    Raises:
        OSError: ENOENT and the like for whatever is not such a file, or climbs.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Not blocking: a pipe that user code has left there would keep the thread for ever.
        descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "no plain file", path)
    return os.fdopen(descriptor, "rb")
