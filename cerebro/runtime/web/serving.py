"""The web server of kvs_api, dispatcher and the local TensorBoard: uvicorn, with limits on connections.

Their main modules create a `WebServer` with `Threads` and call `run`. Every peer that reaches the port can open
connections and send half a request. uvicorn alone waits for the other half forever. `_Connection` adds three rules: a
process opens fewer connections than it may have open files, a request must arrive in time, and when all connections are
taken, the server closes the oldest that waits for a request. No rule closes a connection while its request is being
answered, or while its peer takes the answer.

The only importer of uvicorn. Knows no application: `cerebro.runtime.web.wsgi` runs Flask applications on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cerebro.errors import ClusterError
from cerebro.runtime.web.addresses import in_url, listeners

log = logging.getLogger(__name__)

Result = TypeVar("Result")
App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

MAX_CONNECTIONS = 4000
"""Connections of one service if the limit of open files allows it. A worker, the controller or a viewer needs three."""
GRACE_S = 8.0
"""Longest time for open requests after SIGTERM. Kubernetes gives a pod 30 s by default; clients try again elsewhere."""
HUNG_S = 60.0
"""Seconds without a turn of the event loop that count as hung: no callback takes more than milliseconds."""
STUCK_S = 90.0
"""Seconds without progress of all threads that count as hung if requests wait: calls to the store take up to 15 s."""

_BACKLOG = 128
"""Listen backlog. asyncio may accept this many connections in one step, before `_Connection` can close any."""
_OTHER_FILES = 128
_LEAST = 16
_HEAD_BYTES = 256 * 1024
_TICKS = 2
"""uvicorn ticks every 0.1 s. Every second tick looks for overdue connections."""
_WARN_EVERY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits on the connections of a server and on the time that a request may take.

    Attributes:
        connections: open connections.
        head_s: seconds from the first byte of a request, or from the opening of a connection, to the headers' end.
            If all connections are taken, a peer that takes nothing of an answer for as long is closed.
        body_s, body_bytes_per_s: seconds for a body, plus one second for each `body_bytes_per_s` bytes that arrived.
        idle_s: seconds between an answer and the next request.
        stalled_s: seconds without a byte of an answer taken.
    """

    connections: int = MAX_CONNECTIONS
    head_s: float = 10.0
    body_s: float = 20.0
    body_bytes_per_s: int = 8 * 1024
    idle_s: float = 120.0
    stalled_s: float = 60.0

    @property
    def waiting(self) -> int:
        """Maximum number of requests that wait for news. The other connections are kept for other callers."""
        return self.connections * 3 // 4

    @classmethod
    def of_this_process(cls, threads: int) -> ConnectionLimits:
        """Raise the limit of open files if allowed, and return limits that fit it."""
        return cls(
            connections=max_connections(_raise_open_files(open_files(MAX_CONNECTIONS, threads)), threads)
        )


def open_files(connections: int, threads: int) -> int:
    """Return the most files that a server opens.

    A large body needs a file besides its connection. A thread has a connection to the store and reads a file.
    """
    return 2 * connections + 2 * threads + _BACKLOG + _OTHER_FILES


def max_connections(files: int, threads: int) -> int:
    """Return the connections that a process with `files` open files may have: the inverse of `open_files`."""
    return max(_LEAST, min(MAX_CONNECTIONS, (files - open_files(0, threads)) // 2))


def _raise_open_files(wanted: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


class Threads:
    """Threads that run blocking code for an event loop. Call `run` in the loop."""

    def __init__(self, count: int) -> None:
        self.count, self._pending, self._progress = count, 0, 0.0
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="request")
        together = threading.Barrier(count + 1)  # starts all threads now, not one by one at later requests
        for _ in range(count):
            self._executor.submit(together.wait)
        together.wait()

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call `function` in a thread and return its result."""
        if self._pending == self.count:
            self.note_progress()  # all threads are busy, so this call is the first to wait: start the clock
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, self._call, function, arguments
            )
        finally:
            self._pending -= 1

    def close(self) -> None:
        """End the threads once they have done their present work. Safe in any thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _call(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        self.note_progress()
        try:
            return function(*arguments)
        finally:
            self.note_progress()

    def note_progress(self) -> None:
        """Note that a thread is not stuck. Safe in any thread."""
        self._progress = time.monotonic()

    def hung(self) -> str:
        """Describe stuck threads in one line; return "" if they work. Safe in any thread."""
        still_s, waiting = time.monotonic() - self._progress, self._pending - self.count
        if waiting <= 0 or still_s < STUCK_S:
            return ""
        return f"{waiting} requests wait, and no thread has answered one for {still_s:.0f} s"


class _Connection(HttpToolsProtocol):
    """One connection. Used in the event loop only. Times are from `time.monotonic`."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self.since = time.monotonic()
        """Start of the present phase: connection opened, request begun, or last answer sent and taken by the peer."""
        self._is_idle = False
        """True from an answer to the first byte of the next request."""
        self._head_bytes = 0
        self._body_since: float | None = None
        """Time at which the headers were complete; `None` unless the body is incomplete."""
        self._body_bytes = 0
        self._frame_bytes = 0
        """Bytes received after the newest bytes of the body: chunk sizes, chunk extensions and trailers."""
        self._unsent, self._taken = 0, self.since
        """Bytes of answers that the peer has not taken yet, and the time of the latest change."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close another connection if there are too many now."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            _make_room(self)

    def data_received(self, data: bytes) -> None:
        """Note when a request begins, and refuse one whose headers have no end."""
        if self._is_idle:
            self.since, self._is_idle = time.monotonic(), False
        if self._body_since is None:
            self._head_bytes += len(data)
        else:
            self._frame_bytes += len(data)
        super().data_received(data)
        if max(self._head_bytes, self._frame_bytes) > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers are too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop trailers of a chunked body: uvicorn would add them to the headers, after the checks."""
        if self._body_since is None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse a request whose end or host another server could see elsewhere (request smuggling).

        RFC 9112, sections 3.2 and 6.3. llhttp, which parses requests, refuses further cases.
        """
        names = [name for name, _ in self.headers]
        if b"transfer-encoding" in names and (
            b"content-length" in names or names.count(b"transfer-encoding") > 1 or not self._is_chunked()
        ):
            raise ValueError("the end of the body is ambiguous")
        if names.count(b"host") > 1 or names.count(b"content-length") > 1:
            raise ValueError("a header is set twice")
        self._head_bytes, self._body_since, self._body_bytes, self._frame_bytes = 0, time.monotonic(), 0, 0
        super().on_headers_complete()

    def _is_chunked(self) -> bool:
        (coding,) = [value for name, value in self.headers if name == b"transfer-encoding"]
        return bool(coding.strip().lower() == b"chunked" and self.parser.get_http_version() == "1.1")

    def on_body(self, body: bytes) -> None:
        """Count the body's bytes."""
        self._body_bytes += len(body)
        self._frame_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request has arrived."""
        self._body_since, self._frame_bytes = None, 0
        super().on_message_complete()
        if self.cycle.response_complete:
            self.since, self._is_idle = time.monotonic(), True

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.since, self._is_idle = time.monotonic(), True
        if self._body_since is not None:
            self._body_since = self.since
        super().on_response_complete()

    @property
    def is_waiting(self) -> bool:
        """True if the server waits for the peer's next bytes.

        False while the application answers a complete request, while it has not asked for the rest of a body, and
        while the peer has not taken all of an answer.
        """
        cycle: Any = self.cycle  # `None` before the first request
        is_answering = cycle is not None and not cycle.response_complete
        has_arrived = self._body_since is None or bool(self.pipeline)
        return (
            not (is_answering and (has_arrived or self._is_held))
            and not self.transport.get_write_buffer_size()
        )

    @property
    def _is_held(self) -> bool:
        """True if the application has not asked for the body yet, so the peer must wait."""
        return bool(self.flow.read_paused or self.cycle.waiting_for_100_continue)

    def is_stalled(self, now: float, for_s: float) -> bool:
        """Return True if the peer has taken nothing of an answer for `for_s` seconds."""
        return bool(self._unsent) and now - self._taken > for_s

    def is_overdue(self, now: float) -> bool:
        """Return True if the peer is too slow. Call it every few ticks: it observes the peer's progress."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._taken = unsent, now
            if not unsent:
                self.since = now
        if not self.is_waiting:
            if self._body_since is not None:
                self._body_since = now  # time that the application takes does not count
            return self.is_stalled(now, self._limits.stalled_s)
        if self._body_since is not None:
            granted_s = self._limits.body_s + self._body_bytes / self._limits.body_bytes_per_s
            return now - self._body_since > granted_s
        return now - self.since > (self._limits.idle_s if self._is_idle else self._limits.head_s)

    def is_spare(self, now: float) -> bool:
        """Return True if the server may close it for another caller."""
        return self.is_waiting or self.is_stalled(now, self._limits.head_s)


_warned = float("-inf")


def _make_room(newcomer: _Connection) -> None:
    """Close the oldest connection that waits for its peer, or else the newcomer."""
    global _warned
    now = time.monotonic()
    found: list[Any] = [each for each in newcomer.connections if not each.transport.is_closing()]
    if len(found) <= newcomer._limits.connections:
        return  # others are about to close
    spare = [each for each in found if each.is_spare(now) and each is not newcomer]
    min(spare, key=lambda each: each.since, default=newcomer).transport.abort()
    if now - _warned > _WARN_EVERY_S:
        _warned = now
        log.warning("all %s connections are taken, %s are idle: closed the oldest", len(found), len(spare))


class WebServer(uvicorn.Server):
    """Serves an ASGI application on all addresses of a host. Listens at once, and answers in `run`.

    Args:
        app: the application.
        host, port: where to listen. ``::`` stands for all addresses, of IPv4 and IPv6.
        threads: threads of the application; `run` closes them. They count towards the limit of open files.
        limits: limits on connections; the default fits the limit of open files.
        listening: sockets that are bound already, instead of `host` and `port`.
        before_drain: called in the event loop when the server begins to end, to have waiting requests answered.

    Raises:
        ClusterError: the address is in use, or another machine has it.
    """

    def __init__(
        self,
        app: App,
        *,
        host: str = "",
        port: int = 0,
        threads: Threads,
        limits: ConnectionLimits | None = None,
        listening: list[socket.socket] | None = None,
        before_drain: Callable[[], None] = lambda: None,
    ) -> None:
        limits = limits or ConnectionLimits.of_this_process(threads.count)
        self._threads = threads
        self._before_drain = before_drain
        self._turned = 0.0
        try:
            self.sockets = listening or listeners(host, port)
        except OSError as cause:
            raise ClusterError(
                f"cannot listen on {in_url(host)}:{port} ({cause.strerror}): set CEREBRO_BIND to a free address"
            ) from cause
        for each in self.sockets:
            # uvicorn sends headers and body in two packets. Nagle's algorithm would delay the second by 40 ms.
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app,
            http=partial(_Connection, limits=limits),  # type: ignore[arg-type]  # called like the class
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            # Peers can cause warnings ("Invalid HTTP request received") as often as they like.
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=round(limits.idle_s) + 1,  # `_Connection` closes idle connections before
            timeout_graceful_shutdown=round(GRACE_S),
        )
        super().__init__(config)

    @property
    def port(self) -> int:
        """Port of the first address."""
        return int(self.sockets[0].getsockname()[1])

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer until SIGTERM, SIGINT or `stop`, then answer open requests for up to `GRACE_S` seconds."""
        try:
            super().run(sockets or self.sockets)
        finally:
            self._threads.close()

    def run_process(self) -> NoReturn:
        """Answer until SIGTERM or SIGINT as `run` does, then end the process with status 0.

        Threads that still wait for the store are not waited for.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn replaces these handlers while it runs. When it has ended, it raises the signal again.
            signal.signal(number, lambda *_: self.stop())
        self.run()
        logging.shutdown()
        os._exit(0)

    def stop(self) -> None:
        """End `run`. Safe in any thread; calling twice is safe."""
        self.should_exit = True

    def hung(self) -> str:
        """Describe a stuck event loop or stuck threads in one line; return "" if they work. Safe in any thread."""
        still_s = time.monotonic() - self._turned
        if self._turned and still_s > HUNG_S:
            return f"the server's loop has not turned for {still_s:.0f} s"
        return self._threads.hung()

    async def on_tick(self, counter: int) -> bool:
        """Close overdue connections."""
        now = self._turned = time.monotonic()
        if counter % _TICKS == 0:
            connections: list[Any] = list(self.server_state.connections)
            for connection in connections:
                if connection.is_overdue(now):
                    connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Have waiting requests answered, then end as uvicorn does."""
        self._before_drain()
        await super().shutdown(sockets)
