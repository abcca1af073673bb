"""Locators may reach public addresses and the one configured object store."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data.objects.s3 import S3Store
from cerebro.errors import CerebroError
from dispatcher.start.locator_network import is_allowed, targets_of
from tests.waiting import HANG_S

STORE = "http://10.0.0.7:9000"
PORTS = st.integers(1, 65535)

# --- which addresses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "public"),
    [
        (("93.184.216.34", 443), True), (("2606:2800:220:1::1", 443, 0, 0), True),
        (("127.0.0.1", 80), False), (("::1", 80, 0, 0), False), (("169.254.169.254", 80), False),
        (("10.0.0.1", 80), False), (("192.168.1.1", 80), False), (("172.16.0.1", 80), False),
        (("100.64.0.1", 80), False), (("0.0.0.0", 80), False), (("fe80::1%eth0", 80, 0, 2), False),
        (("fd00::1", 80, 0, 0), False), (("::ffff:127.0.0.1", 80, 0, 0), False),
        ("/run/docker.sock", False), (b"\0abstract", False), ((), False), (("name", 80), False),
        (("93.184.216.34",), False), (("93.184.216.34", "443"), False), (None, False),
    ],
)  # fmt: skip
def test_only_public_addresses_are_allowed(address: object, public: bool) -> None:
    """All other addresses are the cluster's, the machine's or the cloud's."""
    assert is_allowed(address) is public
    assert is_allowed(address, targets_of(STORE)) is public


@settings(deadline=None)
@given(st.ip_addresses(), PORTS)
def test_the_configured_address_and_port_is_allowed(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    """Its neighbours and its other ports stay blocked."""
    reached = targets_of(STORE)
    is_public = is_allowed((str(address), port))
    is_store = (str(address), port) == ("10.0.0.7", 9000)
    assert is_allowed((str(address), port), reached) is (is_store or is_public)
    assert is_allowed(("10.0.0.7", port), reached) is (port == 9000)
    assert is_allowed((f"::ffff:{ipaddress.IPv4Address('10.0.0.7')}", port, 0, 0), reached) is (port == 9000)


@settings(deadline=None)
@given(st.ip_addresses(), PORTS)
def test_the_store_is_at_the_address_of_its_url(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    """At that address and port, except link-local addresses, where clouds serve machine credentials."""
    host = f"[{address}]" if address.version == 6 else str(address)
    plain = getattr(address, "ipv4_mapped", None) or address
    expected = frozenset() if plain.is_link_local else frozenset({(plain, port)})
    assert targets_of(f"http://{host}:{port}") == expected


@settings(deadline=None)
@given(st.ip_addresses(network="169.254.0.0/16"), PORTS)
def test_a_metadata_service_cannot_be_the_store(address: ipaddress.IPv4Address, port: int) -> None:
    """Configuring one as the endpoint does not open it."""
    assert not is_allowed((str(address), port), targets_of(f"http://{address}:{port}"))


@pytest.mark.parametrize(
    ("endpoint", "reached"),
    [
        ("http://10.0.0.7", {("10.0.0.7", 80)}), ("https://10.0.0.7/", {("10.0.0.7", 443)}),
        ("http://user@10.0.0.7:9000/path?x", {("10.0.0.7", 9000)}),
        ("", set()), ("10.0.0.7:9000", set()), ("http://", set()), ("ftp://10.0.0.7", set()),
        ("http://10.0.0.7:99999", set()), ("http://[10.0.0.7", set()), ("http://no name.invalid", set()),
    ],
)  # fmt: skip
def test_an_invalid_url_allows_no_address(endpoint: str, reached: set[tuple[str, int]]) -> None:
    """An unresolvable name opens nothing, either."""
    assert {(str(address), port) for address, port in targets_of(endpoint)} == reached


def _buckets() -> st.SearchStrategy[str]:
    """Plain names, names like hosts, and names that boto3 turns into hosts."""
    word = st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True)
    services = st.sampled_from(["s3", "s3-outposts", "s3-object-lambda", "ec2", "sts"])
    kinds = st.sampled_from(["accesspoint", "outpost:op-0:accesspoint"])
    points = st.builds("arn:aws:{}:{}:123456789012:{}:{}".format, services, word, kinds, word)
    hosts = st.builds("{}{}:{}".format, st.sampled_from(["", "x@", "//", "[::1]"]), word, PORTS)
    express = word.map("{}--use1-az4--x-s3".format)
    return st.one_of(word, points, hosts, express, st.text(min_size=1))


@dataclass(frozen=True)
class _Client:
    """A store client that records the addresses it would contact."""

    client: Any
    requests: list[str] = field(default_factory=list)

    def stop(self, request: Any, **_: object) -> None:
        self.requests.append(request.url)
        raise ConnectionAbortedError


@pytest.fixture(scope="module")
def client() -> _Client:
    import boto3

    client = boto3.session.Session("some-key-id", "some-secret", region_name="us-east-1").client(
        "s3", endpoint_url="http://store.example:9000"
    )
    found = _Client(client)
    client.meta.events.register("before-send", found.stop)
    return found


@settings(deadline=None, max_examples=200)
@given(bucket=_buckets(), key=st.text(min_size=1))
def test_no_locator_chooses_the_store(client: _Client, bucket: str, key: str) -> None:
    """boto3 uses the name as a path at the endpoint or as a subdomain on the same port."""
    client.requests.clear()
    with pytest.MonkeyPatch.context() as patch, suppress(CerebroError, ValueError, ConnectionAbortedError):
        patch.setattr("boto3.session.Session.client", lambda *_, **__: client.client)
        S3Store(f"s3://{bucket}").size(key)
    for address in map(urlsplit, client.requests):
        assert address.hostname is not None
        assert address.hostname == "store.example" or address.hostname.endswith(".store.example")
        assert address.port == 9000


# --- the kernel's view --------------------------------------------------------------------------


def _connected(endpoint: str, port: int) -> str:
    """Return the result of a connection to a port of ``localhost`` behind the guard."""
    program = (
        "import socket, sys; from dispatcher.start.locator_network import guard_network; guard_network(sys.argv[1])\n"
        "try: socket.create_connection(('localhost', int(sys.argv[2])), timeout=2); print('connected')\n"
        "except BaseException as error: print(type(error).__name__)"
    )
    command = [sys.executable, "-c", program, endpoint, str(port)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S).stdout.strip()


@pytest.mark.processes
def test_the_guard_checks_the_resolved_address() -> None:
    """The guard checks the resolved address at connect time, so DNS changes do not help."""
    with socket.socket() as listening, socket.socket() as other:
        for each in (listening, other):
            each.bind(("127.0.0.1", 0))
            each.listen()
        port, elsewhere = listening.getsockname()[1], other.getsockname()[1]
        assert _connected("", port) == "RefusedAddressError"
        assert _connected(f"http://localhost:{port}", port) == "connected"
        assert _connected(f"http://localhost:{port}", elsewhere) == "RefusedAddressError"
