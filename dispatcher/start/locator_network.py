"""Where a process that looks at users' locators may connect to: the internet, and the one object store it is told of.

Addresses are judged as the kernel is asked for them, so no name that a user chose leads elsewhere, whatever it is
resolved to, and however often.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Target = tuple[IPAddress, int]
"""An address and a port."""

_PORTS = {"http": 80, "https": 443}


class RefusedAddressError(BaseException):
    """The process may not connect there. No `Exception`: libraries would try again, or call it an outage."""


def guard_network(endpoint: str = "") -> None:
    """From now on this process connects to public addresses, and to those of an endpoint; elsewhere it is refused.

    Credentials of the machine or pod are not asked for, since those services have link-local addresses.

    Args:
        endpoint: URL of the object store that the administrator configured; it is looked up once, now. Empty: none.
    """
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    for name in ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        os.environ.pop(name, None)
    reached = targets_of(endpoint)

    def audit(event: str, arguments: Sequence[object]) -> None:
        if event == "socket.connect" and not is_allowed(arguments[1], reached):
            raise RefusedAddressError(
                f"{arguments[1]} is no public address, and this page asks no other but that of an object store which "
                "it was told of: see docs/kubernetes.md"
            )

    sys.addaudithook(audit)  # the kernel's own view of the address: a name cannot lead elsewhere afterwards


def targets_of(endpoint: str) -> frozenset[Target]:
    """The addresses and port of a URL, as its name is resolved now; none if it is no URL or cannot be resolved.

    Link-local ones are left out: they are the machine's own services, such as that of its credentials.
    """
    try:
        parts = urlsplit(endpoint)
        port = parts.port or _PORTS[parts.scheme]
        found = socket.getaddrinfo(parts.hostname or "", port, type=socket.SOCK_STREAM)
    except (ValueError, KeyError, OSError):
        return frozenset()
    targets = (_target(address) for *_, address in found)
    return frozenset(target for target in targets if target is not None and not target[0].is_link_local)


def is_allowed(address: object, reached: frozenset[Target] = frozenset()) -> bool:
    """Whether a socket may be connected to an address: a public one, or one of the `reached`. No loopback, private or
    link-local one is public, and no path."""
    target = _target(address)
    return target is not None and (target[0].is_global or target in reached)


def _target(address: object) -> Target | None:
    """A socket's address with its port, of IPv6 without scope, IPv4 within IPv6 as such; None for anything else."""
    match address:
        case (str(host), int(port), *_):
            pass
        case _:
            return None
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed, port
