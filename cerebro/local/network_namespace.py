"""Private network namespace for this process and its children, unreachable from outside. TensorBoard uses it.

Uses Linux user and network namespaces (user_namespaces(7), network_namespaces(7)). Many systems allow them to
every user; containers and some distributions do not, so callers need a fallback.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_INTERFACE_FLAGS, _IS_UP, _IS_RUNNING = 0x8914, 0x1, 0x40
_SET_PDEATHSIG, _GET_PDEATHSIG = 1, 2


def private_network() -> bool:
    """Enter a network with only a loopback interface. Return True if the kernel allowed it.

    Call it before starting threads. Open sockets stay in their network. The process keeps its user, its files
    and its parent-death signal (`cerebro.runtime.isolation.parent_death`).
    """
    if sys.platform != "linux" or not _is_allowed():
        return False
    parent, library, signum = os.getppid(), ctypes.CDLL(None), ctypes.c_int(0)
    library.prctl(_GET_PDEATHSIG, ctypes.byref(signum), 0, 0, 0)
    _enter()
    # A new user namespace changes credentials, and the kernel may clear the parent-death signal then.
    library.prctl(_SET_PDEATHSIG, signum.value, 0, 0, 0)
    if signum.value and os.getppid() != parent:
        sys.exit(0)
    return True


def _enter() -> None:
    user, group = os.geteuid(), os.getegid()
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_NEW_USER | _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    # Map only this user, under the same number. Other users appear as the overflow user.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_INTERFACE_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP | _IS_RUNNING))


def _is_allowed() -> bool:
    """Return True if a child can enter: a process cannot leave a namespace if a later step fails."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _enter()
            status = 0
        except OSError:
            pass
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
