"""Open files below a folder without following links, for services that read volumes user code can write to.

The dispatcher and the controller use it, so that a link or pipe left by user code can neither show them other files
nor block them. Nothing is written.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO})
"""Error numbers for a missing plain file; others are the volume's."""


def open_below(root: Path, path: str) -> io.BufferedReader:
    """Open a plain file below `root` without following links.

    Raises:
        OSError: ENOENT or similar: the file is missing or the path leaves `root`.
    """
    folder, _, name = path.rpartition("/")
    inside = open_folder_below(root, folder)
    try:
        _require_name(name, path)
        # Non-blocking, because opening a pipe left by user code would block forever.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
    finally:
        os.close(inside)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "no plain file", path)
    return os.fdopen(descriptor, "rb")


def open_folder_below(root: Path, path: str) -> int:
    """Return a descriptor of a folder below `root` without following links; "" is `root` itself.

    Raises:
        OSError: ENOENT or similar: the folder is missing or the path leaves `root`.
    """
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in path.split("/") if path else ():
            _require_name(part, path)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
    except BaseException:
        os.close(folder)
        raise
    return folder


def _require_name(part: str, path: str) -> None:
    if part in ("", ".", "..") or "\0" in part:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
