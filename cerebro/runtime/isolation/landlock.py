"""Landlock: irrevocably restrict file access of this process and its children.

`cerebro.worker.child.sandbox` chooses the folders and calls `restrict`; `cerebro doctor` asks why it is unavailable.
Landlock does not cover modes, owners and times: `metadata_guard` does. Wraps the three system calls (landlock(7), the
kernel's userspace-api/landlock.rst, uapi/linux/landlock.h), which need no privileges.

``python -m cerebro.runtime.isolation.landlock`` tests it in a separate process: exit status 0, or a line with the
reason.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from enum import IntFlag
from functools import reduce
from operator import or_
from pathlib import Path

from cerebro.runtime.isolation.self_test import failure_of

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The same numbers on all processors that have wheels of torch (asm-generic/unistd.h)."""
_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38


class Access(IntFlag):
    """``LANDLOCK_ACCESS_FS_*`` flags used here. Unhandled rights, such as executing or listing, stay allowed."""

    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14


OF_FILES = Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE
"""Rights that a rule for a file may name; other rights are for folders."""
ALL = reduce(or_, Access)
"""All rights. `~Access(0)` would also set bits without a name."""


def known_to(abi: int) -> Access:
    """Return the rights that a Landlock version can restrict.

    Before version 2 it refuses all renames between folders; before 3 it cannot prevent truncation by name.
    """
    known = ALL
    if abi < 2:
        known &= ~Access.REFER
    if abi < 3:
        known &= ~Access.TRUNCATE
    return known


def why_unavailable() -> str:
    """Return why this process cannot use Landlock, for people, or an empty text."""
    if sys.platform != "linux":
        return "only Linux has Landlock"
    abi, error = _abi()
    if abi > 0:
        return ""
    if error == errno.ENOSYS:
        return (
            f"the kernel ({os.uname().release}) has no Landlock: it came with Linux 5.13 "
            "(CONFIG_SECURITY_LANDLOCK), or an old seccomp profile hides it"
        )
    if error == errno.EOPNOTSUPP:
        return "Landlock is switched off on this kernel: put landlock into its parameter lsm= and reboot"
    return (
        f"landlock_create_ruleset is refused ({os.strerror(error)}): as a rule by a seccomp profile that is older than "
        "Landlock; use the container runtime's present one (RuntimeDefault)"
    )


def abi_version() -> int:
    """Return the version of the kernel's Landlock; 0 if this process cannot use it."""
    return max(0, _abi()[0]) if sys.platform == "linux" else 0


def why_not_enforced() -> str:
    """Return why Landlock has no effect here, or an empty text. A subprocess tries to create a forbidden file."""
    return why_unavailable() or failure_of(__name__)


def restrict(*, read: Iterable[Path], write: Iterable[Path], write_files: Iterable[Path] = ()) -> None:
    """Restrict this thread and its future children. Irrevocable; other threads are not affected.

    They may change only files beneath `write`, and read only files beneath `write` and `read`. Missing and
    unreachable paths are skipped.

    Args:
        read: files or folders.
        write: folders with all their content.
        write_files: folders of devices: files may be read and written but not created or removed.

    Raises:
        OSError: the kernel refused; nothing has changed.
    """
    handled = known_to(_abi()[0])
    ruleset = _call(_CREATE_RULESET, ctypes.c_char_p(struct.pack("=Q", int(handled))), 8, 0)
    try:
        for paths, access in ((read, Access.READ_FILE), (write_files, OF_FILES), (write, ALL)):
            for path in paths:
                _allow(ruleset, path, access & handled)
        if _library().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, access: Access) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= OF_FILES
        rule = struct.pack("=Qi", int(access), descriptor)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(descriptor)


def _abi() -> tuple[int, int]:
    """Return the version; or -1, and errno."""
    found = _library().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return int(found), ctypes.get_errno()


def _call(number: int, *arguments: object) -> int:
    converted = [ctypes.c_size_t(each) if isinstance(each, int) else each for each in arguments]
    found = int(_library().syscall(number, *converted))
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock, system call {number}: {os.strerror(error)}")
    return found


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _try() -> str:
    with tempfile.TemporaryDirectory() as folder:
        inside, outside = Path(folder, "inside"), Path(folder, "outside")
        inside.mkdir()
        outside.mkdir()
        child = os.fork()
        if child == 0:
            status = 3
            with suppress(OSError):
                restrict(read=[Path("/")], write=[inside])
                (inside / "file").touch()
                status = 4
                try:
                    (outside / "file").touch()
                except PermissionError:
                    status = 0
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    reasons = {0: "", 4: "the kernel took the rules, and did not keep them"}
    return reasons.get(status, "the kernel, or a seccomp profile, refused the rules (landlock_restrict_self)")


if __name__ == "__main__":
    sys.exit(why_unavailable() or _try() or 0)
