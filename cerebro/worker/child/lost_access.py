"""Restore the mode of files that user code has made unreadable for the worker.

The task loop calls `restore` for a failed task. Without the sandbox, code of any experiment can ``chmod`` all files of
the worker's user. If a task then fails with EACCES, its process restores the mode of files of its user id below the
volumes, and the failure is retryable. Other files and links are not changed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_FILE, _FOLDER = stat.S_IRUSR | stat.S_IWUSR, stat.S_IRWXU


def restore(error: BaseException, roots: Iterable[Path]) -> str:
    """Give the owner access again to the paths of an error.

    Args:
        roots: the volumes; only paths below them are changed.

    Returns:
        A message about the restored paths, or an empty text.
    """
    tops = [root.resolve() for root in roots]
    changed = [text for path in _denied(error) for text in _restored(path, tops)]
    if not changed:
        return ""
    return (
        f"The worker had no access to {'; '.join(changed)}, because user code has changed the mode. The worker has "
        "restored it and tries the task again. CEREBRO_SANDBOX=on (worker.sandbox of the chart) prevents such changes"
    )


def _denied(error: BaseException) -> Iterator[Path]:
    """Yield the paths of all EACCES errors in a chain of errors."""
    visited: set[int] = set()
    pending = [error]
    while pending:
        each = pending.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        if isinstance(each, OSError) and each.errno == errno.EACCES:
            yield from (
                Path(os.fsdecode(n)) for n in (each.filename, each.filename2) if isinstance(n, str | bytes)
            )
        pending += [cause for cause in (each.__cause__, each.__context__) if cause is not None]


def _restored(path: Path, tops: Iterable[Path]) -> Iterator[str]:
    """Restore a path and the folders above it up to its volume, from the top; links are not followed."""
    # The path itself may be unreadable, so only its lexical form is known.
    plain = Path(os.path.normpath(path if path.is_absolute() else Path.cwd() / path))
    for top in tops:
        if plain.is_relative_to(top):
            for each in reversed([plain, *plain.parents[: len(plain.relative_to(top).parts)]]):
                with suppress(OSError):
                    yield from _restored_one(each)


def _restored_one(path: Path) -> Iterator[str]:
    facts = path.lstat()
    mode, is_folder = stat.S_IMODE(facts.st_mode), stat.S_ISDIR(facts.st_mode)
    needed = stat.S_IRUSR | stat.S_IXUSR if is_folder else stat.S_IRUSR  # a read-only file may stay read-only
    is_ours = facts.st_uid == os.geteuid() and (is_folder or stat.S_ISREG(facts.st_mode))
    if is_ours and mode & needed != needed:
        path.chmod(mode | (_FOLDER if is_folder else _FILE))
        yield f"{path} (mode {mode:04o})"
