"""A network of its own for this process and what it starts: what they listen on there, nobody else reaches.

Owns the use of Linux' user and network namespaces (user_namespaces(7), network_namespaces(7)). Many systems let every
user make them, containers and some distributions do not; so whoever asks needs another way.
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
    """Leave the network for one that has a loopback interface only; whether the kernel allowed it.

    To be called before any thread is started. Sockets that are open stay in the network they were made in. The process
    keeps its user, its files, and what ties it to its parent (`cerebro.runtime.parent_death`).
    """
    if sys.platform != "linux" or not _is_allowed():
        return False
    parent, library, signum = os.getppid(), ctypes.CDLL(None), ctypes.c_int(0)
    library.prctl(_GET_PDEATHSIG, ctypes.byref(signum), 0, 0, 0)
    _enter()
    # Another user namespace is another set of rights, at whose change the kernel may untie a process.
    library.prctl(_SET_PDEATHSIG, signum.value, 0, 0, 0)
    if signum.value and os.getppid() != parent:
        sys.exit(0)
    return True


def _enter() -> None:
    user, group = os.geteuid(), os.getegid()
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_NEW_USER | _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    # The namespace knows this one user, under the same number: all else would look like nobody's.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_INTERFACE_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP | _IS_RUNNING))


def _is_allowed() -> bool:
    """Try it in a child: one cannot leave a namespace in which a later step is refused."""
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
