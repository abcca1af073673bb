"""The web server handles stalled and slow connections over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.runtime.web.serving import (
    MAX_CONNECTIONS,
    ConnectionLimits,
    Threads,
    WebServer,
    max_connections,
    open_files,
)
from cerebro.runtime.web.wsgi import WsgiOnAsgi
from tests.dispatcher.serving import end, start
from tests.waiting import HANG_S, until

LIMIT_S = HANG_S
HALF = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
WHOLE = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BIG = b"GET /%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
"""Requests a response of that many bytes."""
BODY = b"POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"


class Served:
    """A server whose app answers, once allowed, with the body's length or the requested bytes."""

    def __init__(
        self,
        limits: ConnectionLimits,
        host: str = "127.0.0.1",
        before_drain: Callable[[], None] = lambda: None,
    ) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.arrivals = threading.Semaphore(0)
        self.threads = Threads(2)
        self.server = WebServer(
            WsgiOnAsgi(self._app, self.threads),
            host=host,
            threads=self.threads,
            limits=limits,
            before_drain=before_drain,
        )
        self._loop = start(self.server)

    def _app(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        self.environ = environ
        self.arrivals.release()
        self.may_answer.wait(LIMIT_S)
        path = environ["PATH_INFO"][1:]
        body = bytes(int(path)) if path.isdigit() else str(len(environ["wsgi.input"].read())).encode()
        start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    @property
    def connections(self) -> list[Any]:
        """Return the open connections."""
        return list(self.server.server_state.connections)

    def connect(self, content: bytes = b"", address: tuple[str, int] | None = None) -> socket.socket:
        """Connect and send `content`."""
        connection = socket.create_connection(address or self.address, timeout=LIMIT_S)
        connection.sendall(content)
        return connection

    def connect_slowly(self, content: bytes) -> socket.socket:
        """Connect with a small receive buffer, so the client reads slowly."""
        connection = socket.socket()
        connection.settimeout(LIMIT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        connection.connect(self.address)
        connection.sendall(content)
        return connection

    @property
    def address(self) -> tuple[str, int]:
        """The address the server listens on."""
        host, port = self.server.sockets[0].getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Stop the server."""
        self.may_answer.set()
        end(self.server, self._loop)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Served] = []

    def run(host: str = "127.0.0.1", **limits: Any) -> Served:
        servers.append(Served(ConnectionLimits(**limits), host))
        return servers[-1]

    yield run
    for each in servers:
        each.close()


def is_closed(connection: socket.socket) -> bool:
    """Wait for the connection to close; return True if no response came first."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def answered(connection: socket.socket) -> bool:
    """Read one response; return True if its status is 200."""
    head, _, body = _until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")
    (length,) = [
        int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
    ]
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head.startswith(b"HTTP/1.1 200")


def _until(connection: socket.socket, mark: bytes) -> bytes:
    content = b""
    while mark not in content:
        piece = connection.recv(1 << 16)
        assert piece, content
        content += piece
    return content


@pytest.mark.parametrize("content", [b"", b"\r\n\r\n", HALF, BODY, BODY + b"x"])
def test_an_incomplete_request_times_out(serve: Serve, content: bytes) -> None:
    """Empty requests, partial headers and partial bodies each have a deadline."""
    served = serve(head_s=0.1, body_s=0.1)
    with served.connect(content) as idle:
        assert is_closed(idle)


def test_slow_header_bytes_do_not_extend_the_deadline(serve: Serve) -> None:
    """The headers have one overall deadline."""
    served = serve(head_s=0.2)
    with served.connect(HALF) as slow:
        slow.settimeout(0.02)
        deadline = time.monotonic() + LIMIT_S
        while _is_open(slow):
            assert time.monotonic() < deadline


def _is_open(slow: socket.socket) -> bool:
    """Send one more byte; return True if the connection is still open shortly after."""
    try:
        slow.sendall(b"x")
        return slow.recv(1) != b""
    except TimeoutError:
        return True
    except (ConnectionResetError, BrokenPipeError):
        return False


def test_a_steadily_arriving_body_extends_its_deadline(serve: Serve) -> None:
    """Received bytes extend the deadline."""
    served = serve(head_s=0.1, body_s=0.1, body_bytes_per_s=10)
    began = time.monotonic()
    with served.connect(BODY) as slow:
        for _ in range(10):
            slow.sendall(b"x" * 100)
            threading.Event().wait(0.05)
        assert answered(slow)
    assert time.monotonic() - began > 0.4


def test_headers_without_end_are_refused(serve: Serve) -> None:
    """Headers have a maximum size, so one request cannot fill the memory."""
    served = serve()
    with served.connect(HALF) as caller, suppress(ConnectionResetError, BrokenPipeError):
        for _ in range(100):
            caller.sendall(b"x" * (1 << 16))
        assert b"400 " in _until(caller, b"\r\n\r\n")


def test_the_oldest_partial_request_is_closed_for_a_new_caller(serve: Serve) -> None:
    """When partial requests fill all connections, the oldest closes and a new caller is answered at once."""
    served = serve(connections=8, head_s=LIMIT_S, idle_s=LIMIT_S)
    with ExitStack() as stack:
        half = [stack.enter_context(served.connect(HALF)) for _ in range(8)]
        caller = stack.enter_context(served.connect(WHOLE))
        assert answered(caller)
        assert is_closed(half[0])
        half[-1].sendall(b"\r\n\r\n")
        assert answered(half[-1])


def test_a_stalled_loop_is_reported(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The health server has its own thread and checks the loop."""
    served = serve()
    with served.connect(WHOLE) as caller:
        assert answered(caller)
        _stick(served, monkeypatch)


def _stick(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.server.hung() == ""
    monkeypatch.setattr("cerebro.runtime.web.serving.HUNG_S", 0.05)
    is_stuck, may_go_on = threading.Event(), threading.Event()

    def stick() -> None:
        is_stuck.set()
        may_go_on.wait(LIMIT_S)

    (connection,) = served.connections
    connection.loop.call_soon_threadsafe(stick)
    assert is_stuck.wait(LIMIT_S)
    threading.Event().wait(0.1)
    assert "has not turned for" in served.server.hung()
    may_go_on.set()


def test_stalled_threads_are_reported(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models a deadlock in the app: the loop runs but no request is answered.

    Without a waiting request, or within the time of a blocking read, the server is healthy.
    """
    served = serve()
    served.may_answer.clear()
    with ExitStack() as stack:
        readers = [stack.enter_context(served.connect(WHOLE)) for _ in range(2)]
        assert all(served.arrivals.acquire(timeout=LIMIT_S) for _ in readers)
        with monkeypatch.context() as short:
            short.setattr("cerebro.runtime.web.serving.STUCK_S", -1.0)
            assert served.server.hung() == ""
        readers.append(stack.enter_context(served.connect(WHOLE)))
        until(lambda: served.threads._pending == 3, "a request waits for a thread")
        assert served.server.hung() == ""
        monkeypatch.setattr("cerebro.runtime.web.serving.STUCK_S", 0.05)
        until(served.server.hung, "the threads hang")
        assert "1 requests wait, and no thread has answered one" in served.server.hung()
        served.may_answer.set()
        assert all(answered(each) for each in readers)
        assert served.server.hung() == ""


MIB = 1 << 20


def taken(reader: socket.socket) -> int:
    """Count the response bytes received before the connection or response ends."""
    content = _until(reader, b"\r\n\r\n")
    head, _, body = content.partition(b"\r\n\r\n")
    (length,) = [
        int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
    ]
    size = len(body)
    with suppress(ConnectionResetError):
        while size < length and (piece := reader.recv(1 << 16)):
            size += len(piece)
    return size


@pytest.mark.parametrize("size", [14 * MIB, 40 * MIB], ids=["buffered", "held by threads"])
def test_an_unread_answer_times_out(serve: Serve, size: int) -> None:
    """Otherwise slow readers would hold all threads or connections."""
    served = serve(stalled_s=0.1)
    with served.connect(BIG % size), served.connect(BIG % size), served.connect(WHOLE) as caller:
        assert answered(caller)
        until(lambda: len(served.connections) == 1, "one connection is left")


def test_unread_answers_are_dropped_for_new_callers(serve: Serve) -> None:
    """Slow readers are dropped sooner when all connections are in use."""
    served = serve(connections=4, head_s=0.2, stalled_s=LIMIT_S)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(served.connect(BIG % (14 * MIB)))
            assert served.arrivals.acquire(timeout=LIMIT_S)
        until(
            lambda: all(each.is_stalled(time.monotonic(), 0.2) for each in served.connections),
            "all readers stall",
        )
        for _ in range(2):
            assert answered(stack.enter_context(served.connect(WHOLE)))


def test_a_clock_set_forward_interrupts_no_answer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines use a monotonic clock."""
    served = serve()
    with served.connect_slowly(BIG % (14 * MIB)) as slow:
        assert served.arrivals.acquire(timeout=LIMIT_S)
        until(lambda: not served.threads._pending, "all threads rest")
        now = time.time()
        monkeypatch.setattr("time.time", lambda: now + 1e6)
        for _ in range(2):  # loop passes that check for overdue connections
            with served.connect(WHOLE) as caller:
                assert answered(caller)
        assert taken(slow) == 14 * MIB


@given(st.integers(0, 1 << 20), st.integers(1, 200))
def test_connections_fit_into_the_open_files(files: int, threads: int) -> None:
    """The limits leave a few file descriptors free, for any file limit and thread count."""
    found = max_connections(files, threads)
    assert 16 <= found <= MAX_CONNECTIONS
    assert found == 16 or open_files(found, threads) <= files


SECOND = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
EMPTY_CHUNK = b"0\r\n\r\n"


def _post(*headers: bytes, version: bytes = b"1.1") -> bytes:
    return b"\r\n".join((b"POST /body HTTP/" + version, b"Host: x", *headers, b"", b""))


@pytest.mark.parametrize(
    "content",
    [
        _post(b"Content-Length: 5", b"Transfer-Encoding: chunked") + EMPTY_CHUNK,
        _post(b"transfer-encoding: Chunked", b"content-length: 5") + EMPTY_CHUNK,
        _post(b"Content-Length: 0", b"Transfer-Encoding:\tchunked") + EMPTY_CHUNK,
        _post(b"Content-Length: 3", b"Transfer-Encoding:") + b"abc",
        _post(b"Content-Length: 3", b"Transfer-Encoding: ,") + b"abc",
        _post(b"Content-Length: 3", b"Transfer-Encoding: identity") + b"abc",
        _post(b"Transfer-Encoding:") + EMPTY_CHUNK,
        _post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + EMPTY_CHUNK,
        _post(b"Transfer-Encoding: chunked, identity") + EMPTY_CHUNK,
        _post(b"Transfer-Encoding:", b" chunked") + EMPTY_CHUNK,
        _post(b"Connection: keep-alive", b"Content-Length: 3", b"Transfer-Encoding: chunked", version=b"1.0") + b"abc",
        _post(b"Connection: keep-alive", b"Transfer-Encoding: chunked", version=b"1.0") + EMPTY_CHUNK,
        _post(b"Content-Length: 3", b"Content-Length: 3") + b"abc",
        _post(b"Content-Length: 3, 3") + b"abc",
        _post(b"Content-Length: +3") + b"abc",
        _post(b"Content-Length : 3") + b"abc",
        _post(b"Host: y", b"Content-Length: 3") + b"abc",
        _post(b"Transfer-Encoding: chunked") + b"3\nabc\r\n0\r\n\r\n",
        _post(b"Transfer-Encoding: chunked") + b"3\r\nabcX\r\n0\r\n\r\n",
        _post(b"Transfer-Encoding: chunked") + b"-3\r\nabc\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_a_request_with_an_ambiguous_length_ends_its_connection(serve: Serve, content: bytes) -> None:
    """A proxy may see another end, so the request is refused and the following bytes are not read as a request."""
    served = serve()
    with served.connect(content + SECOND) as connection:
        answer = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                answer += piece
    assert answer.count(b"HTTP/1.") == 1
    assert answer.split(b" ")[1] in (b"400", b"501")
    assert not served.arrivals.acquire(blocking=False)


@pytest.mark.parametrize(
    "content",
    [
        _post(b"Transfer-Encoding: Chunked") + b"3;a=b\r\nabc\r\n0\r\nTrailer: x\r\n\r\n",
        _post(b"Content-Length: 3") + b"abc",
    ],
)
def test_requests_follow_each_other_on_a_connection(serve: Serve, content: bytes) -> None:
    """Each request states its length, or ends with an empty chunk."""
    served = serve()
    with served.connect(content) as connection:
        assert answered(connection)
        connection.sendall(SECOND)
        assert answered(connection)


def test_trailers_do_not_count_as_headers(serve: Serve) -> None:
    """They come after the headers were checked."""
    served = serve()
    trailers = b"X-Forwarded-User: admin\r\nHost: y\r\n\r\n"
    with served.connect(_post(b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n" + trailers) as connection:
        assert answered(connection)
    assert "HTTP_X_FORWARDED_USER" not in served.environ
    assert served.environ["HTTP_HOST"] == "x"


@pytest.mark.parametrize(
    "frame", [b"0\r\nX: " + bytes([120]), b"0\r\n", b"3;a="], ids=["line", "lines", "extension"]
)
def test_trailers_and_extensions_without_end_are_refused(serve: Serve, frame: bytes) -> None:
    """They count as bytes of no body, so the limit of bodies does not hold for them."""
    served = serve()
    piece = b"X: y\r\n" * 1000 if frame == b"0\r\n" else b"x" * 6000
    with served.connect(_post(b"Transfer-Encoding: chunked") + frame) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            for _ in range(100):
                connection.sendall(piece)
            assert b" 400 " in connection.recv(1 << 16)
        assert not served.arrivals.acquire(blocking=False)


@pytest.mark.parametrize("state", ["paused", "continue"])
def test_time_in_the_application_does_not_count_as_slow_sending(serve: Serve, state: str) -> None:
    """The time until the application asks for the body is not the peer's."""
    served = serve()
    with served.connect(BODY):
        until(lambda: served.connections and served.connections[0].cycle, "a request")
        (connection,) = served.connections
        for is_held in (False, True):
            connection.cycle.waiting_for_100_continue = is_held and state == "continue"
            connection.flow.read_paused = is_held and state == "paused"
            assert connection.is_waiting is not is_held
            assert connection.is_overdue(time.monotonic() + 1000.0) is not is_held
