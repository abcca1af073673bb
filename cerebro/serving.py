"""The web server of kvs_api and dispatcher: waitress, with limits that idle connections cannot use up.

Anybody who reaches the port can open connections and send half a request. Three rules keep the server answering: there
are fewer connections than the process may have open files, a request has to arrive in time, and when all connections
are taken, the one that has waited longest for a request is closed for the next caller. A request that has arrived whole
is never cut off here, however long its answer takes: blocking reads take half a minute.

The only importer of waitress. It extends two classes of it, `TcpWSGIServer` and `HTTPChannel`, because waitress itself
has one timeout, for connections on which nothing at all happens, and stops accepting when its limit is reached. Nothing
here knows what is served.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 2000
"""Of one service, where the limit of open files allows it. A worker, the controller or a viewer needs two or three."""
HUNG_S = 60.0
"""A loop that has not turned for so long will not turn again: its longest turn moves one piece of one answer."""

_OTHER_FILES = 128
_LEAST = 16
_ACCEPTED_AT_ONCE = 32
_WARN_EVERY_S = 60.0
_BODY_IN_MEMORY = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many connections there may be, and how long one may go without a whole request.

    Attributes:
        connections: so many at once.
        head_s: from the first byte of a request, or the opening of a connection, to the end of the headers.
        body_s, body_bytes_per_s: for the body `body_s`, and a second more for every so many bytes of it that came.
        idle_s: between an answer and the next request; and without a byte taken of an answer.
    """

    connections: int = MOST_CONNECTIONS
    head_s: float = 10.0
    body_s: float = 20.0
    body_bytes_per_s: int = 8 * 1024
    idle_s: float = 120.0

    @classmethod
    def of_this_process(cls, threads: int) -> Limits:
        """What fits below the limit of open files, which is raised as far as it is needed and may be raised."""
        return cls(
            connections=most_connections(_raise_open_files(open_files(MOST_CONNECTIONS, threads)), threads)
        )


def open_files(connections: int, threads: int) -> int:
    """How many files a server has open at most. A large body or answer lies in a file beside its connection; a thread
    has a connection to the store and reads a file; the rest is the process's own."""
    return 2 * connections + 2 * threads + _OTHER_FILES


def most_connections(files: int, threads: int) -> int:
    """How many connections a process with so many open files may have: the inverse of `open_files`."""
    return max(_LEAST, min(MOST_CONNECTIONS, (files - 2 * threads - _OTHER_FILES) // 2))


def _raise_open_files(wanted: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


class _Channel(HTTPChannel):  # type: ignore[misc]
    """One connection. Belongs to the server's loop, but for `service`, which runs in a thread."""

    limits = Limits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._since = time.monotonic()
        """Since when it has waited for the request that is to come."""
        self._headed: float | None = None
        """When the headers of the request that is arriving were complete."""
        self._is_rested = False
        """Whether nothing has arrived since the last answer."""
        self._is_answering = False
        super().__init__(*arguments, **named)

    @property
    def since(self) -> float:
        """Since when it has waited for a whole request, as `time.monotonic`. Blank lines do not begin one anew."""
        return self._since

    @property
    def is_waiting(self) -> bool:
        """Whether nobody works on a request of it."""
        return not (self.requests or self._is_answering or self.will_close)

    def received(self, data: bytes) -> bool:
        """Note when a request began, and when its headers were complete."""
        if self._is_rested:
            self._since, self._is_rested = time.monotonic(), False
        found = bool(super().received(data))
        if self.request is None:
            self._headed = None
        elif self._headed is None and self.request.headers_finished:
            self._headed = time.monotonic()
        return found

    def service(self) -> None:
        """Answer. The next request has its own time: waitress takes this one off its list before it is done here."""
        self._is_answering = True
        try:
            super().service()
        finally:
            self._since, self._headed, self._is_rested = time.monotonic(), None, self.request is None
            self._is_answering = False

    def is_overdue(self, now: float) -> bool:
        """Whether it has had its time. `now` as `time.monotonic`."""
        if not self.is_waiting:
            return False
        if self.total_outbufs_len:
            return bool(time.time() - self.last_activity > self.limits.idle_s)
        if self._headed is not None and self.request is not None:
            granted_s = self.limits.body_s + self.request.body_bytes_received / self.limits.body_bytes_per_s
            return bool(now - self._headed > granted_s)
        return now - self._since > (self.limits.idle_s if self._is_rested else self.limits.head_s)


class WebServer(TcpWSGIServer):  # type: ignore[misc]
    """Serves on one address. Made by `create_server`."""

    channel_class = _Channel
    limits = Limits()
    turned = 0.0
    """When its loop last turned, as `time.monotonic`; 0 before the first turn."""
    _warned = 0.0

    def hung(self) -> str:
        """What is wrong with the loop; empty if nothing is. From any thread."""
        still_s = time.monotonic() - self.turned
        return (
            f"the server's loop has not turned for {still_s:.0f} s"
            if self.turned and still_s > HUNG_S
            else ""
        )

    def readable(self) -> bool:
        """Whether to accept: asked once in every turn of the loop, before it waits."""
        self.turned = time.monotonic()
        return bool(super().readable()) and (self._has_room() or self._made_room())

    def handle_accept(self) -> None:
        """Take in all who wait, some at a time: a turn of the loop looks at every connection, and waitress would take
        in one caller in each."""
        for _ in range(_ACCEPTED_AT_ONCE):
            before = len(self.active_channels)
            super().handle_accept()
            if len(self.active_channels) == before or not (self._has_room() or self._made_room()):
                return

    def maintenance(self, now: float) -> None:
        """Close what is overdue; waitress calls this every `cleanup_interval`."""
        for channel in self.active_channels.values():
            if channel.is_overdue(time.monotonic()):
                channel.will_close = True

    def _has_room(self) -> bool:
        return len(self.active_channels) < self.limits.connections

    def _made_room(self) -> bool:
        # It is only marked, and closed in the same turn of the loop: a closed one's number could be given away anew
        # while the loop still has news of the old one.
        waiting = [channel for channel in self.active_channels.values() if channel.is_waiting]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda channel: channel.since)
        oldest.will_close = True
        if self.turned - self._warned > _WARN_EVERY_S:
            self._warned = self.turned
            log.warning(
                "all %s connections are taken, %s of them without a request: those that wait longest are closed",
                len(self.active_channels),
                len(waiting),
            )
        return True


def create_server(
    app: Callable[..., Any],
    *,
    host: str,
    port: int,
    threads: int,
    max_body_bytes: int = 1 << 30,
    sockets: MutableMapping[int, Any] | None = None,
    limits: Limits | None = None,
    listener: socket.socket | None = None,
) -> WebServer:
    """A server that listens from now on and answers in `run`.

    Args:
        app: the WSGI application.
        host, port: a name with several addresses is listened on at each of them, by one loop.
        threads: requests answered at once.
        max_body_bytes: larger bodies are refused before `app` sees them.
        sockets: all sockets of the server by descriptor, for `cerebro.draining`; touched by its loop only.
        limits: of connections; by default as many as the limit of open files allows, which is raised for it.
        listener: a socket that is bound to `host` and `port` already.

    Raises:
        OSError: the address cannot be listened on.
    """
    limits = limits or Limits.of_this_process(threads)
    sockets = {} if sockets is None else sockets
    adjustments = Adjustments(
        host=host,
        port=port,
        threads=threads,
        max_request_body_size=max_body_bytes,
        # `select` knows descriptors below 1024 only, whatever the limit of open files.
        asyncore_use_poll=True,
        cleanup_interval=min(1.0, limits.head_s / 2),
        # Ours comes first: at its own limit waitress would stop accepting.
        connection_limit=open_files(limits.connections, threads),
        channel_request_lookahead=0,
        # A body is taken in before anybody looks at the token: of 2,000 that arrive slowly, little lies in memory.
        inbuf_overflow=_BODY_IN_MEMORY,
        ident=None,
    )
    dispatcher = ThreadedTaskDispatcher()
    dispatcher.set_thread_count(threads)
    channel = type("Channel", (_Channel,), {"limits": limits})
    kind = type("Server", (WebServer,), {"limits": limits, "channel_class": channel})
    if listener is not None:
        own = (listener.family, listener.type, listener.proto, listener.getsockname())
        bound: WebServer = kind(
            app,
            sockets,
            _sock=listener,
            dispatcher=dispatcher,
            adj=adjustments,
            sockinfo=own,
            bind_socket=False,
        )
        return bound
    servers: list[WebServer] = [
        kind(app, sockets, dispatcher=dispatcher, adj=adjustments, sockinfo=address)
        for address in adjustments.listen
    ]
    return servers[0]
