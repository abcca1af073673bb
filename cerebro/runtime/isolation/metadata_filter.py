"""The seccomp filter that hands the system calls which change a file's metadata to a supervisor.

`metadata_guard` installs it and judges the calls. This module has the table of calls with their arguments, and the
filter program itself (seccomp(2), uapi/linux/seccomp.h), for x86-64 and AArch64. Other calls pass.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MACHINES = {"x86_64": 317, "aarch64": 277}
"""Processors whose calls are known here, and the number of seccomp(2)."""
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SET_MODE_FILTER, _SPEC_ALLOW, _NEW_LISTENER = 1, 1 << 2, 1 << 3
_ALLOW, _NOTIFY, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_PR_SET_NO_NEW_PRIVS = 38
_X32 = 0x40000000
"""First number of the x32 ABI's calls on x86-64, which have other numbers."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of one system call, by position; `None` means absent.

    Attributes:
        change: kind of change.
        folder: directory of a relative path, or the file itself without a path.
        path: address of the path.
        flags: flags of the call (``AT_EMPTY_PATH`` and others).
        value_index: index of the first argument with the new value.
        follows: True if the kernel follows a link in the last component.
    """

    change: str
    folder: int | None = None
    path: int | None = None
    flags: int | None = None
    value_index: int
    follows: bool = True


CALLS: Mapping[str, Call] = {
    "chmod": Call(change="mode", path=0, value_index=1),
    "fchmod": Call(change="mode", folder=0, value_index=1),
    "fchmodat": Call(change="mode", folder=0, path=1, value_index=2),
    "chown": Call(change="owner", path=0, value_index=1),
    "lchown": Call(change="owner", path=0, value_index=1, follows=False),
    "fchown": Call(change="owner", folder=0, value_index=1),
    "fchownat": Call(change="owner", folder=0, path=1, value_index=2, flags=4),
    "setxattr": Call(change="attribute", path=0, value_index=1),
    "lsetxattr": Call(change="attribute", path=0, value_index=1, follows=False),
    "fsetxattr": Call(change="attribute", folder=0, value_index=1),
    "removexattr": Call(change="no attribute", path=0, value_index=1),
    "lremovexattr": Call(change="no attribute", path=0, value_index=1, follows=False),
    "fremovexattr": Call(change="no attribute", folder=0, value_index=1),
    "utimensat": Call(change="times", folder=0, path=1, value_index=2, flags=3),
    "utime": Call(change="seconds", path=0, value_index=1),
    "utimes": Call(change="microseconds", path=0, value_index=1),
    "futimesat": Call(change="microseconds", folder=0, path=1, value_index=2),
}
NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280,
    },
    "aarch64": {
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "utimensat": 88,
    },
}  # fmt: skip
_IOCTL = {"x86_64": 16, "aarch64": 29}
ABSENT = (425, 452, 463, 466, 469)
"""io_uring_setup, fchmodat2, setxattrat, removexattrat and file_setattr.

They would bypass the filter. Programs fall back to older calls, as on older kernels. All processors use these numbers.
"""
_REFUSED_IOCTLS = (0x40086602, 0x401C5820, 0x40806685)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY."""


_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCH_AT, _SECOND_ARGUMENT_AT = 0, 4, 24


def program(machine: str) -> bytes:
    """Return the filter as classic BPF instructions: code, jump if true, jump if false, operand."""
    absent, refused = _ERRNO | errno.ENOSYS, _ERRNO | errno.EPERM

    def when(numbers: Iterable[int], then: int) -> list[tuple[int, int, int, int]]:
        return [step for n in numbers for step in ((_JUMP_EQUAL, 0, 1, n), (_RETURN, 0, 0, then))]

    ioctls = [
        (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        *when(_REFUSED_IOCTLS, refused),
        (_RETURN, 0, 0, _ALLOW),
    ]
    steps = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, absent),  # calls of 32-bit programs have other numbers
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, absent),
        *when(sorted(NUMBERS[machine].values()), _NOTIFY),
        *when(ABSENT, absent),
        (_JUMP_EQUAL, 0, len(ioctls), _IOCTL[machine]),
        *ioctls,
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def install() -> int:
    """Install the filter for this thread and its future children. Return the descriptor that receives its calls."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"seccomp on {sys.platform}, {machine}")
    steps = program(machine)
    seccomp_filter = _Filter(len(steps) // 8, steps)
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    flags = ctypes.c_size_t(_NEW_LISTENER | _SPEC_ALLOW)
    found = int(library.syscall(MACHINES[machine], _SET_MODE_FILTER, flags, ctypes.byref(seccomp_filter)))
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp(SECCOMP_SET_MODE_FILTER): {os.strerror(error)}")
    os.set_inheritable(found, False)
    return found
