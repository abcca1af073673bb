"""The web server of kvs_api and dispatcher: waitress, with limits that idle connections cannot use up.

Anybody who reaches the port can open connections and send half a request. Three rules keep the server answering: there
are fewer connections than the process may have open files, a request has to arrive in time, and when all connections
are taken, the one that has waited longest for a request is closed for the next caller. A request that has arrived whole
is never cut off here, however long its answer takes: blocking reads take half a minute. Nor is an answer whose reader
takes some of it now and then.

A request that waits for news holds a connection, and no thread (`cerebro.runtime.long_polls`). An idle connection costs
no time (`cerebro.runtime.event_loop`). So thousands of either disturb nobody. A quarter of the connections is kept for
others than those that wait.

The only importer of waitress. It extends `TcpWSGIServer`, `HTTPChannel`, `HTTPRequestParser`, `WSGITask` and
`ThreadedTaskDispatcher`, because waitress has a timeout for silent connections only, stops accepting at its limit,
polls every connection in each turn of its loop, and answers requests that a proxy may delimit differently. This module
knows no application.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher, WSGITask

from cerebro.errors import ClusterError
from cerebro.runtime.addresses import EVERYWHERE, in_url, usable
from cerebro.runtime.event_loop import EventLoop
from cerebro.runtime.long_polls import LongPoll, Parked, ParkedRequests, answering

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 4000
"""Of one service, where the limit of open files allows it. A worker, the controller or a viewer needs two or three."""
HUNG_S = 60.0
"""A loop that has not turned for so long will not turn again: its longest turn moves one piece of one answer."""

STUCK_S = 90.0
"""Threads that have moved nothing for so long while requests wait will not move again: blocking reads take 30 s."""

_TURN_S = 1.0
"""Longest turn of the loop, in which it looks for connections that are overdue."""

_OTHER_FILES = 128
_LEAST = 16
_ACCEPTED_AT_ONCE = 32
_WARN_EVERY_S = 60.0
_BODY_IN_MEMORY = 64 * 1024
_JUST_S = 0.5
"""For so long after it was accepted, a connection whose request has not come is closed for nobody else."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """How many connections there may be, and how long one may go without a whole request.

    Attributes:
        connections: so many at once.
        head_s: from the first byte of a request, or the opening of a connection, to the end of the headers; and
            without a byte taken of an answer, when all connections are taken.
        body_s, body_bytes_per_s: for the body `body_s`, and a second more for every so many bytes of it that came.
        idle_s: between an answer and the next request.
        stalled_s: without a byte taken of an answer.
    """

    connections: int = MOST_CONNECTIONS
    head_s: float = 10.0
    body_s: float = 20.0
    body_bytes_per_s: int = 8 * 1024
    idle_s: float = 120.0
    stalled_s: float = 60.0

    @property
    def parked(self) -> int:
        """How many may wait for news. Without the rest, readers alone would keep all others out."""
        return self.connections * 3 // 4

    @classmethod
    def of_this_process(cls, threads: int) -> ConnectionLimits:
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


class _Threads(ThreadedTaskDispatcher):  # type: ignore[misc]
    """Those that answer, and the requests that wait for one of them."""

    moved = 0.0
    """When a request last began to wait with none before it, was taken or answered, or some of an answer was taken, as
    `time.monotonic`."""

    def add_task(self, task: Any) -> None:
        """The first one that waits has all the time from now on. Of a queue waitress would write a line for each
        request, when there is least time for that."""
        with self.lock:
            if not self.queue:
                self.moved = time.monotonic()
            self.queue.append(task)
            self.queue_cv.notify()

    def hung(self) -> str:
        """What is wrong; empty if nothing is. From any thread."""
        still_s = time.monotonic() - self.moved
        waiting = len(self.queue)
        return (
            f"{waiting} requests wait, and no thread has answered one for {still_s:.0f} s"
            if waiting and still_s > STUCK_S
            else ""
        )


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """A request that arrives. If its end or its host is ambiguous, the server refuses it and closes the connection.

    A proxy that sees the end elsewhere would take the rest of one caller's request for the begin of another's (request
    smuggling; RFC 9112, sections 3.2, 5.2 and 6.3).
    """

    def parse_header(self, header_plus: bytes) -> None:
        """Raises: ParsingError: answered with 400, and the connection is closed."""
        super().parse_header(header_plus)
        lines = header_plus.split(b"\r\n")[1:]
        names = [line.partition(b":")[0].lower() for line in lines]
        if any(line[:1] in (b" ", b"\t") for line in lines):
            raise ParsingError("A header goes on in the next line")
        if b"transfer-encoding" in names:
            if b"content-length" in names:
                raise ParsingError("Both Content-Length and Transfer-Encoding are set")
            if names.count(b"transfer-encoding") > 1 or not self.chunked:
                raise ParsingError("Transfer-Encoding is invalid")
        if names.count(b"host") > 1:
            raise ParsingError("Host is set twice")


class _Task(WSGITask):  # type: ignore[misc]
    """A request being answered, perhaps not for the first time."""

    def get_environment(self) -> dict[str, Any]:
        """With a body that nothing was read of yet."""
        environ: dict[str, Any] = super().get_environment()
        environ["wsgi.input"].seek(0)
        return environ


class _Thread(threading.local):
    channel: Any = None
    """Whose request this thread answers, or has answered last."""


class _Channel(HTTPChannel):  # type: ignore[misc]
    """One connection. Belongs to the server's loop, but for `service`, which runs in a thread."""

    limits = ConnectionLimits()
    parser_class = _Parser
    task_class = _Task
    _thread: _Thread

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._accepted = self._since = time.monotonic()
        """Since when it has waited for the request that is to come."""
        self._headed: float | None = None
        """When the headers of the request that is arriving were complete."""
        self._is_rested = False
        """Whether nothing has arrived since the last answer."""
        self._is_answering = False
        self._taken = time.monotonic()
        """When the peer last took some of an answer, or the first of one was given to it."""
        self._poll: LongPoll | None = None
        """Of the request that has its turn, once it has had one."""
        self._polled: Any = None
        """That request."""
        self._is_parked = False
        super().__init__(*arguments, **named)

    def add_channel(self, map: MutableMapping[int, Any] | None = None) -> None:
        """It is there from now on."""
        super().add_channel(map)
        self.server.loop.begin(self._fileno)

    def del_channel(self, map: MutableMapping[int, Any] | None = None) -> None:
        """It is about to be closed."""
        self.server.loop.forget(self._fileno)
        super().del_channel(map)

    def handle_close(self) -> None:
        """Whoever waited here waits no more."""
        super().handle_close()
        if self._poll is not None:
            self._poll.end()

    @property
    def awaits_end(self) -> bool:
        """Whether nothing is to come but news, or the end of its peer."""
        return self._is_parked

    @property
    def since(self) -> float:
        """Since when it has waited for a whole request, or for its peer to take an answer, as `time.monotonic`. Blank
        lines do not begin a request anew."""
        return self._taken if self.total_outbufs_len else self._since

    @property
    def is_waiting(self) -> bool:
        """Whether nobody works on a request of it, and nothing of an answer is left to send."""
        return not (self.requests or self._is_answering or self.will_close or self.total_outbufs_len)

    def is_spare(self, now: float) -> bool:
        """Whether it may be closed for another caller, when all connections are taken. `now` as `time.monotonic`."""
        # Without the second, thousands of answers that nobody takes would keep all others out.
        is_new = self._since == self._accepted and now - self._accepted < _JUST_S
        return (self.is_waiting and not is_new) or self.is_stalled(now, self.limits.head_s)

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
        """Answer, or park. The next request has its own time: waitress takes this one off its list before it is done
        here."""
        request, poll = self._begin()
        self._is_answering, self.server.task_dispatcher.moved = True, time.monotonic()
        self._thread.channel, self._is_parked = self, False
        try:
            with answering(poll):
                super().service()
        except Parked:
            self._rest()
            self._park(poll)
        except BaseException:
            self._rest()
            self.server.parked.forget(poll)
            raise
        else:
            self._rest()
            self.server.parked.forget(poll)
            with self.requests_lock:
                if self._polled is request:
                    self._poll = self._polled = None

    def _begin(self) -> tuple[Any, LongPoll]:
        """The request that has its turn, and its poll. Another thread may not be done yet with the one before, whose
        time is over."""
        with self.requests_lock:
            request = self.requests[0]
            if self._poll is None or self._polled is not request:
                self._poll, self._polled = LongPoll(self._resume), request
            return request, self._poll

    def _rest(self) -> None:
        self._since, self._headed, self._is_rested = time.monotonic(), None, self.request is None
        self._is_answering, self.server.task_dispatcher.moved = False, self._since

    def _park(self, poll: LongPoll) -> None:
        is_first = self.server.parked.add(poll)
        self._is_parked = True
        self.server.loop.look(self._fileno)
        if not poll.settle():
            self._resume()
        elif is_first and poll.until is not None and poll.until < self.server.loop.wakes_at:
            self.server.pull_trigger()

    def _resume(self) -> None:
        self._is_parked = False
        self.server.add_task(self)

    def write_soon(self, data: Any) -> int:
        """Called in a thread, with a piece of an answer; waits while too much of it has not been taken."""
        if not self.total_outbufs_len:
            self._taken = time.monotonic()
        return int(super().write_soon(data))

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Note when something was taken. A thread that waits for a slow reader is not stuck."""
        sent = int(super().send(data, do_close=do_close))
        if sent:
            self._taken = time.monotonic()
            if self._is_answering:
                self.server.task_dispatcher.moved = self._taken
        return sent

    def is_overdue(self, now: float) -> bool:
        """Whether it has had its time. `now` as `time.monotonic`."""
        if self.total_outbufs_len:
            return self.is_stalled(now, self.limits.stalled_s)
        if not self.is_waiting:
            return False
        if self._headed is not None and self.request is not None:
            granted_s = self.limits.body_s + self.request.body_bytes_received / self.limits.body_bytes_per_s
            return bool(now - self._headed > granted_s)
        return now - self._since > (self.limits.idle_s if self._is_rested else self.limits.head_s)

    def is_stalled(self, now: float, for_s: float) -> bool:
        """Whether its peer has taken nothing of an answer for so long, and it is not given up yet."""
        return bool(self.total_outbufs_len) and not self.will_close and now - self._taken > for_s

    def give_up(self) -> None:
        """Have it closed in this turn of the loop, or the next. In the loop only.

        It is only marked: a closed one's number could be given away anew while the loop still has news of the old one.
        """
        self.will_close = True
        self.server.loop.look(self._fileno)
        if self.total_outbufs_len:
            with contextlib.suppress(OSError):  # its peer has just left
                self.socket.shutdown(socket.SHUT_RDWR)  # the loop has no news of a peer that takes nothing


class WebServer(TcpWSGIServer):  # type: ignore[misc]
    """Serves on one address. Made by `create_server`. Those of one service share the loop, the threads and the
    connections, so that any one of them can be asked."""

    channel_class = _Channel
    limits = ConnectionLimits()
    loop: EventLoop
    parked: ParkedRequests
    _thread: _Thread
    turned = 0.0
    """When its loop last turned, as `time.monotonic`; 0 before the first turn."""
    _warned = 0.0

    def run(self) -> None:
        """Answer until nothing is listened on."""
        try:
            self.loop.run(self._turn_s)
        except (SystemExit, KeyboardInterrupt):
            self.task_dispatcher.shutdown()

    def _turn_s(self) -> float:
        """How long a turn may wait, once those whose wait is over are being answered."""
        left_s = self.parked.wake_due()
        return min(_TURN_S, _TURN_S if left_s is None else left_s)

    def answer_waiting(self) -> None:
        """Have those who wait for news answered with what there is, now and from now on. From any thread."""
        self.parked.end()

    def pull_trigger(self) -> None:
        """Wake the loop, which is to look at the connection that this thread serves."""
        if self._thread.channel is not None:
            self.loop.look(self._thread.channel._fileno)
        super().pull_trigger()

    def hung(self) -> str:
        """What is wrong with the loop or with all threads; empty if nothing is. From any thread."""
        still_s = time.monotonic() - self.turned
        if self.turned and still_s > HUNG_S:
            return f"the server's loop has not turned for {still_s:.0f} s"
        return str(self.task_dispatcher.hung())

    def readable(self) -> bool:
        """Whether to accept: asked once in every turn of the loop, before it waits."""
        self.turned = time.monotonic()
        return bool(super().readable()) and (self._has_free_connection() or self._closed_one())

    def handle_accept(self) -> None:
        """Take in all who wait, some at a time: a turn of the loop looks at every connection, and waitress would take
        in one caller in each."""
        for _ in range(_ACCEPTED_AT_ONCE):
            before = len(self.active_channels)
            super().handle_accept()
            if len(self.active_channels) == before or not (self._has_free_connection() or self._closed_one()):
                return

    def maintenance(self, now: float) -> None:
        """Close what is overdue; waitress calls this every `cleanup_interval`."""
        for channel in self.active_channels.values():
            if channel.is_overdue(time.monotonic()):
                channel.give_up()

    def _has_free_connection(self) -> bool:
        over = len(self.active_channels) - self.limits.connections
        # What is about to be closed is free in a moment: nobody else is closed for the same caller.
        return over < 0 or sum(each.will_close for each in self.active_channels.values()) > over

    def _closed_one(self) -> bool:
        channels, now = list(self.active_channels.values()), time.monotonic()
        spare = [each for each in channels if each.is_spare(now)]
        if not spare:
            return False
        min(spare, key=lambda channel: channel.since).give_up()
        if self.turned - self._warned > _WARN_EVERY_S:
            self._warned = self.turned
            log.warning(
                "all %s connections are taken, %s of them idle: those that are for the longest time are closed",
                len(channels),
                len(spare),
            )
        return True


def _handle(one: Any, events: int) -> None:
    """Do what the events of a socket ask for."""
    if events & select.EPOLLRDHUP and one.awaits_end:
        one.handle_close()
    else:
        wasyncore.readwrite(one, events)


def create_server(
    app: Callable[..., Any],
    *,
    host: str,
    port: int,
    threads: int,
    max_body_bytes: int = 1 << 30,
    sockets: MutableMapping[int, Any] | None = None,
    limits: ConnectionLimits | None = None,
    listener: socket.socket | None = None,
) -> WebServer:
    """A server that listens from now on and answers in `run`.

    Args:
        app: the WSGI application.
        host, port: one loop serves every address of the name. ``::`` stands for all addresses, of IPv4 and IPv6.
        threads: requests answered at once.
        max_body_bytes: larger bodies are refused before `app` sees them.
        sockets: all sockets of the server by descriptor, for `cerebro.runtime.draining`; touched by its loop only.
        limits: of connections; by default as many as the limit of open files allows, which is raised for it.
        listener: a socket that is bound to `host` and `port` already.

    Raises:
        ClusterError: the address cannot be listened on.
    """
    limits = limits or ConnectionLimits.of_this_process(threads)
    sockets = {} if sockets is None else sockets
    is_everywhere = host in EVERYWHERE
    adjustments = Adjustments(
        host="*" if is_everywhere else host,
        port=port,
        threads=threads,
        max_request_body_size=max_body_bytes,
        cleanup_interval=min(1.0, limits.head_s / 2),
        # Ours comes first: at its own limit waitress would stop accepting.
        connection_limit=open_files(limits.connections, threads),
        channel_request_lookahead=0,
        # A body is taken in before anybody looks at the token: of 2,000 that arrive slowly, little lies in memory.
        inbuf_overflow=_BODY_IN_MEMORY,
        ident=None,
    )
    dispatcher = _Threads()
    dispatcher.set_thread_count(threads)
    thread = _Thread()
    channel = type("Channel", (_Channel,), {"limits": limits, "_thread": thread})
    shared = {"loop": EventLoop(sockets, _handle), "parked": ParkedRequests(limits.parked), "_thread": thread}
    kind = type("Server", (WebServer,), {"limits": limits, "channel_class": channel, **shared})
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
    try:
        servers: list[WebServer] = [
            kind(app, sockets, dispatcher=dispatcher, adj=adjustments, sockinfo=address)
            # A socket for each family: of one for both, callers by IPv4 would have addresses of IPv6.
            for address in (usable(adjustments.listen) if is_everywhere else adjustments.listen)
        ]
    except OSError as cause:
        raise ClusterError(
            f"cannot listen on {in_url(host)}:{port} ({cause.strerror}): set CEREBRO_BIND to a free address"
        ) from cause
    for other in servers[1:]:
        other.active_channels = servers[0].active_channels
    return servers[0]
