"""Loopback ports of a local cluster's services, which stay the same when services or the cluster restart.

`cerebro.local.__main__` reserves them at the start and for added workers; the record in the home keeps the numbers.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro.errors import ClusterError

HOST = "127.0.0.1"
_SPAN = 12_000
_LOWEST = 2_000
_DEFAULT_EPHEMERAL = 32_768


@dataclass(frozen=True)
class Port:
    """A port with a bound socket that reserves it while its service is away.

    The socket never listens. It is bound with SO_REUSEADDR: a service with the same option (all servers set
    it) can bind and listen, but the kernel does not use the port as a source port. Otherwise a client that
    reconnects to a dead service could get this port and connect to itself.
    """

    number: int
    reservation: socket.socket


def reserve(names: Sequence[str], *, previous: Mapping[str, int], seed: str) -> dict[str, Port]:
    """Reserve a port for each name: the previous port if free, else one that depends on `seed`.

    Args:
        names: services that listen.
        previous: ports at the last start, which people may have bookmarked.
        seed: eight hexadecimal digits; clusters with different seeds try different ports first.

    Raises:
        ClusterError: no port is free.
    """
    candidates = _candidates(int(seed, 16))
    ports: dict[str, Port] = {}
    for name in names:
        bound = _bind(previous[name], shared=True) if name in previous else None
        while bound is None:
            number = next(candidates, None)
            if number is None:
                raise ClusterError(
                    f"no free port for {name} on {HOST}: end some of the programs that listen there"
                )
            if number not in previous.values() and _is_unused(number):
                bound = _bind(number, shared=True)
        ports[name] = Port(bound.getsockname()[1], bound)
    return ports


def is_free(number: int) -> bool:
    """True if a service could listen on the port."""
    bound = _bind(number, shared=True)
    if bound is None:
        return False
    bound.close()
    return True


def _candidates(seed: int) -> Iterator[int]:
    """Yield ports below the kernel's ephemeral range, in an order that depends on the seed."""
    top = _first_ephemeral()
    if top <= _LOWEST + 1:
        top = _DEFAULT_EPHEMERAL
    span = min(_SPAN, top - _LOWEST)
    for step in range(span):
        yield top - span + (seed + step) % span


def _first_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return _DEFAULT_EPHEMERAL


def _is_unused(number: int) -> bool:
    exclusive = _bind(number, shared=False)
    if exclusive is None:
        return False
    exclusive.close()
    return True


def _bind(number: int, *, shared: bool) -> socket.socket | None:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))
    try:
        bound.bind((HOST, number))
    except OSError:
        bound.close()
        return None
    return bound
