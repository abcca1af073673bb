"""Network limits of the process that reads locators: public addresses and one configured object store.

`locator_process` calls `guard_network` on a cluster, not on the user's own machine. Addresses are checked when a
socket connects, so a name that a user chose cannot resolve to another address afterwards. Only Python's sockets are
checked.
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
    """The process may not connect to this address. Not an `Exception`, because libraries would retry or report an
    outage.
    """


def guard_network(endpoint: str = "") -> None:
    """Limit this process to public addresses and `endpoint`; disable credentials of the machine.

    Args:
        endpoint: URL of the configured object store, resolved once now. An empty text allows public addresses only.
    """
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    for name in ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        os.environ.pop(name, None)
    reached = targets_of(endpoint)

    def audit(event: str, arguments: Sequence[object]) -> None:
        if event == "socket.connect" and not is_allowed(arguments[1], reached):
            raise RefusedAddressError(
                f"{arguments[1]} is not a public address. This page connects only to public addresses and to the "
                'configured object store: see "On Kubernetes" in the documentation'
            )

    sys.addaudithook(audit)  # An audit hook sees the address that the kernel gets, not the name.


def targets_of(endpoint: str) -> frozenset[Target]:
    """Return the addresses and port of a URL. Excludes link-local addresses, such as the machine's credentials
    service.

    Returns an empty set for an invalid or unresolvable URL.
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
    """True for a public address, or one of `reached`. Loopback, private and link-local addresses are not public."""
    target = _target(address)
    return target is not None and (target[0].is_global or target in reached)


def _target(address: object) -> Target | None:
    """Return the normalized address and port of a socket, or `None`. Removes IPv6 scopes, unmaps IPv4."""
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
