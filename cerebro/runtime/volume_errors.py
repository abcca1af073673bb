"""Errors of volumes: one table says which errors of the operating system the platform retries.

Code that reads or writes a volume wraps it in `volume_errors_named`; the child's task loop and the agent classify other
errors with `platform_error`. A volume that is full, read-only or away for a moment says nothing about a model. Such an
error is the platform's if the platform's own code met it, or if it names a path on one of the platform's volumes.
Retries themselves are the controller's decision.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cerebro.errors import StorageFullError, VolumeError
from cerebro.runtime.tracebacks import is_platforms

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The volume has no room."""
AWAY = frozenset(
    {
        *(errno.EIO, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN),
        *(
            errno.ENFILE,
            errno.ENODEV,
            errno.ENXIO,
            errno.EREMOTEIO,
            errno.ECONNABORTED,
            errno.ECONNRESET,
            errno.ESHUTDOWN,
        ),
        *(
            errno.EHOSTDOWN,
            errno.EHOSTUNREACH,
            errno.ENETDOWN,
            errno.ENETUNREACH,
            errno.EUCLEAN,
            errno.ENOLCK,
        ),
    }
)
"""Errors of a volume that is temporarily unavailable. Another attempt or worker may succeed."""
DENIED = frozenset({errno.EACCES, errno.EPERM})
"""The volume refuses access: its mount or its modes changed."""
LIMITED = frozenset({errno.EMFILE, errno.EFBIG})
"""A process has too many open files, or a file is too large. The task may cause it itself, so the attempt counts."""
NO_MEMORY = frozenset({errno.ENOMEM, errno.EAGAIN})
"""The kernel has no memory to map a file, or to read it."""
KNOWN = FULL | AWAY | DENIED | LIMITED
"""Errors of volumes, not of files: a file that is missing or damaged raises others."""

_LINKS = 6
"""Maximum exceptions of a chain to inspect."""
_LIMITS = {errno.EFBIG: resource.RLIMIT_FSIZE, errno.EMFILE: resource.RLIMIT_NOFILE}
"""Errors that a resource limit of the process causes, too."""


@contextmanager
def volume_errors_named(folder: Path, *, also: Collection[int] = (), may_deny: bool = True) -> Iterator[None]:
    """Turn errors of the volume below `folder` into `StorageFullError` or `VolumeError`; other errors pass.

    Args:
        folder: folder or file, named by the error if the operating system names none.
        also: further error numbers that count as errors of the volume.
        may_deny: True if refused access is an error of the volume, too.
    """
    try:
        yield
    except OSError as error:
        found = of_volume(error, folder, also=also)
        if found is None or (error.errno in DENIED and not may_deny):
            raise
        raise found from error


def of_volume(
    error: OSError, folder: Path, *, also: Collection[int] = ()
) -> StorageFullError | VolumeError | None:
    """Return the platform's error for an error below `folder`; `None` if no volume caused it."""
    number = _number(error, KNOWN.union(also))
    reason = error.strerror or str(error)
    if number in FULL:
        return StorageFullError.at(
            f"no space to write in {folder} ({_free_bytes(folder)} bytes free): {reason}. "
            "Free space on this volume; complete files on it are unchanged",
            folder,
        )
    if number in LIMITED:
        return VolumeError(
            f"{_named(error) or folder} cannot be opened or written: {reason} (errno {number}). "
            "Check if the code leaves files open, or writes very large files; the attempt counts"
        )
    if number is not None:
        path = _named(error) or folder
        return VolumeError.at(
            f"{path} cannot be used now: {reason} (errno {number}). Check the volume and its "
            "mount; the work is tried again",
            path,
        )
    return None


def platform_error(
    error: BaseException, roots: Sequence[Path], *, may_deny: bool = True
) -> StorageFullError | VolumeError | None:
    """Return the platform's error behind a task's exception; `None` if it is the user's or absent.

    Args:
        roots: folders of the platform's volumes.
        may_deny: True if refused access below `roots` is the platform's error, even in user code.
    """
    for each in _chain(error):
        if isinstance(each, StorageFullError | VolumeError):
            return each
        if not isinstance(each, OSError) or each.errno not in KNOWN:
            continue
        path = _named(each)
        is_below = path is not None and any(path.is_relative_to(root) for root in roots)
        if is_platforms(each) or (is_below and (may_deny or each.errno not in DENIED)):
            folder = path.parent if path is not None else (roots[0] if roots else Path())
            return of_volume(each, folder)
    return None


def error_of_call(error: BaseException, scratch: Path) -> StorageFullError | VolumeError | None:
    """Return the platform's error that a call of user code raised in preprocessing; `None` if it is the user's.

    Errors of the user's own files, refused access, and exceptions that user code raised instead are the user's.

    Args:
        scratch: folder of the platform that the call may read and write.
    """
    if isinstance(error, StorageFullError | VolumeError):
        return error
    path = _named(error) if isinstance(error, OSError) and error.errno not in DENIED else None
    if path is None or not path.is_relative_to(scratch):
        return None
    assert isinstance(error, OSError)
    return of_volume(error, path.parent)


def limits() -> dict[int, int]:
    """Return the resource limits of this process that cause errors of volumes: error number -> soft limit."""
    return {number: resource.getrlimit(limit)[0] for number, limit in _LIMITS.items()}


def lowered_limit(error: BaseException, before: dict[int, int]) -> str:
    """Describe the limit that user code changed and that caused `error`; return "" otherwise."""
    now = limits()
    for each in _chain(error):
        number = each.errno if isinstance(each, OSError) else None
        if number in now and now[number] != before[number]:
            name = "RLIMIT_FSIZE" if number == errno.EFBIG else "RLIMIT_NOFILE"
            return f"user code set {name} to {now[number]} (it was {before[number]})"
    return ""


def _number(error: OSError, known: Collection[int]) -> int | None:
    """Return the number of an error if it is `known`. Arrow's error of a failed `mmap` has only the text."""
    if error.errno is not None:
        return error.errno if error.errno in known else None
    return next((number for number in known if os.strerror(number) in str(error)), None)


def _named(error: OSError) -> Path | None:
    return Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_LINKS):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _free_bytes(folder: Path) -> int:
    try:
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
