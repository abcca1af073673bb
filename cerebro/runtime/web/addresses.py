"""Addresses that services listen on and are reached at, of IPv4 and IPv6.

`serving`, `health` and `on_demand` get their sockets here; settings parse ``HOST:PORT`` with it. `::` stands for every
address of the machine, of both families where the kernel has them. Standard library only.
"""

from __future__ import annotations

import errno
import socket
from urllib.parse import urlsplit

EVERYWHERE = frozenset({"*", "::"})
"""Hosts that mean all addresses of both families; ``0.0.0.0`` means all IPv4 addresses."""

_LAST_PORT = 65535
_NO_SUCH_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


def split_bind(bind: str) -> tuple[str, str]:
    """Return host, without brackets, and port of ``HOST:PORT`` or ``[HOST]:PORT``; either may be ""."""
    host, _, port = bind.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def host_name(header: str) -> str:
    """Return the name in a ``Host`` header, in lower case, without port, brackets and final dot."""
    name = header[1 : header.find("]")] if header.startswith("[") else header.partition(":")[0]
    return name.lower().rstrip(".")


def in_url(host: str) -> str:
    """Return a host as written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def bracketed(url: str) -> str:
    """Return the URL with brackets around an IPv6 address.

    On clusters without DNS, the chart builds URLs from ``$(NAME_SERVICE_HOST)``, an address without brackets. The
    digits after the last colon are the port, so a URL without brackets must have one.
    """
    try:
        netloc = urlsplit(url).netloc
    except ValueError:
        return url
    user, at, place = netloc.rpartition("@")
    host, _, port = place.rpartition(":")
    if ":" not in host or host.startswith("["):
        return url
    return url.replace(netloc, f"{user}{at}[{host}]:{port}", 1)


def listener(host: str, port: int) -> socket.socket:
    """Return one socket that listens on the first address of a host.

    For a host of `EVERYWHERE` it listens on all addresses: of both families, or of IPv4 on a machine without IPv6.

    Raises:
        OSError: the address cannot be listened on.
        OverflowError: the port is out of range.
    """
    if not 0 <= port <= _LAST_PORT:
        raise OverflowError(f"port {port} is not between 0 and {_LAST_PORT}")
    if host not in EVERYWHERE:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(place[:2], family=family)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                raise
    return socket.create_server(("", port))


def listeners(host: str, port: int) -> list[socket.socket]:
    """Return one socket for each address of a host; for a host of `EVERYWHERE`, one for each family.

    A single socket for both families, as `listener` returns, would show IPv4 callers with IPv6-mapped addresses
    (``::ffff:192.0.2.1``).

    Raises:
        OSError: one of the addresses cannot be listened on.
    """
    found: list[socket.socket] = []
    try:
        places = socket.getaddrinfo(
            None if host in EVERYWHERE else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, place in dict.fromkeys(places):
            try:
                found.append(socket.create_server(place[:2], family=family))
            except OSError as error:
                if host not in EVERYWHERE or error.errno not in _NO_SUCH_FAMILY:
                    raise
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, "no address of this name")
    except OSError:
        for each in found:
            each.close()
        raise
    return found
