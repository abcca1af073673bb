"""Services listen on IPv4 and IPv6, and URLs put brackets around IPv6 addresses."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest

from cerebro.runtime.web import addresses, health
from cerebro.runtime.web.serving import Threads, WebServer
from cerebro.runtime.web.wsgi import WsgiOnAsgi
from tests.dispatcher.serving import running
from tests.waiting import HANG_S

BOTH = ("127.0.0.1", "::1")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@contextmanager
def no_ipv6(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make IPv6 sockets fail, as on a kernel booted without IPv6."""

    class Socket(socket.socket):
        def __init__(self, family: int = -1, *rest: object, **named: object) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Socket)
        yield


@pytest.mark.parametrize(
    ("bind", "parts"),
    [
        ("127.0.0.1:7070", ("127.0.0.1", "7070")),
        ("[::]:7070", ("::", "7070")),
        ("[fd00::7]:1", ("fd00::7", "1")),
        (":7070", ("", "7070")),
        ("name:x", ("name", "x")),
        ("nonsense", ("", "nonsense")),
    ],
)
def test_bind_addresses_are_split(bind: str, parts: tuple[str, str]) -> None:
    assert addresses.split_bind(bind) == parts


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://fd00::7:7070", "http://[fd00::7]:7070"),
        ("http://[fd00::7]:7070", "http://[fd00::7]:7070"),
        ("http://10.0.0.7:7070", "http://10.0.0.7:7070"),
        ("http://cerebro-kvs-api:7070", "http://cerebro-kvs-api:7070"),
        ("redis://:p:ss@fd00::1:6379/0", "redis://:p:ss@[fd00::1]:6379/0"),
        ("redis://:secret@10.0.0.1:6379/0", "redis://:secret@10.0.0.1:6379/0"),
        ("redis://:secret@[::1]:6379/0", "redis://:secret@[::1]:6379/0"),
    ],
)
def test_urls_of_variables_of_the_kubelet_get_brackets(given: str, url: str) -> None:
    """The kubelet sets `$(NAME_SERVICE_HOST)` without brackets."""
    assert addresses.bracketed(given) == url


@needs_ipv6
def test_probes_are_answered_on_both_families() -> None:
    """One server listens on both families."""
    server = health.serve("[::]:0", ready=str, live=str)
    try:
        for host in BOTH:
            assert health.probe(f"http://{addresses.in_url(host)}:{server.server_address[1]}/health") == ""
    finally:
        server.shutdown()
        server.server_close()


def test_probes_are_answered_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    with no_ipv6(monkeypatch):
        server = health.serve("[::]:0", ready=str, live=str)
    try:
        assert health.probe(f"http://127.0.0.1:{server.server_address[1]}/health") == ""
    finally:
        server.shutdown()
        server.server_close()


@needs_ipv6
def test_store_and_page_are_served_on_both_families() -> None:
    """Each family has its own socket, so IPv4 callers keep their address and match the list of trusted proxies."""
    threads = Threads(1)
    server = WebServer(WsgiOnAsgi(who, threads), host="::", threads=threads)
    with running(server):
        assert {each.family for each in server.sockets} == {socket.AF_INET, socket.AF_INET6}
        for each in server.sockets:
            host = "::1" if each.family == socket.AF_INET6 else "127.0.0.1"
            connection = HTTPConnection(host, each.getsockname()[1], timeout=HANG_S)
            connection.request("GET", "/")
            assert connection.getresponse().read().decode() == host
            connection.close()


def who(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
    """Answer with the caller's address."""
    start("200 OK", [("Content-Type", "text/plain")])
    return [environ["REMOTE_ADDR"].encode()]
