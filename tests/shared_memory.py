"""Unused files in /dev/shm."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import until

FOLDER = Path("/dev/shm")


def unused() -> set[Path]:
    """Return the files in /dev/shm that no process has mapped.

    Other tests and programs have shared memory too, at the same time. Theirs is mapped while they run.
    """
    mapped, files = _mapped_inodes(), set()
    for path in FOLDER.iterdir():
        try:
            if path.is_file() and path.stat().st_ino not in mapped:
                files.add(path)
        except FileNotFoundError:  # removed since the listing
            continue
    return files


def check_none_left(before: set[Path]) -> None:
    """Wait until each unused file is one of `before`. Python's resource tracker removes files of killed processes.

    Raises:
        AssertionError: another unused file exists; the note names it.
    """
    try:
        until(lambda: unused() <= before, f"no unused file in {FOLDER}")
    except AssertionError as error:
        error.add_note(f"left: {sorted(map(str, unused() - before))}")
        raise


def _mapped_inodes() -> set[int]:
    """Return the inodes of the files in /dev/shm that a process has mapped.

    Inodes, because the kernel shows the temporary name under which glibc creates a semaphore.
    """
    inodes = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:  # the process has ended, or another user started it
            continue
        inodes |= {int(line.split(maxsplit=5)[4]) for line in lines if f" {FOLDER}/" in line}
    return inodes
